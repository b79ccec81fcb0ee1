#!/usr/bin/env ruby
# frozen_string_literal: true

# A lock for redis-rb (4.8 and 5): with_lock extends it as long as its block runs.
#
#   RedisLock.with_lock("invoice:7", ttl: 30_000, wait: 30_000, host: "redis") do |lock| # in milliseconds
#     pay(7, fence: lock.fence) # UPDATE … SET paid = true, fence = :fence WHERE id = 7 AND fence < :fence
#   end
#
# It is for one server, not for a cluster. To use it, copy the class, or require this file. As a program it writes a
# report in steps, under the lock:
#
#   lock.rb NAME TTL WAIT STEPS
#
# TTL and WAIT are in milliseconds, and a WAIT of 0 is none. The server is at 127.0.0.1, port $REDIS_PORT (6379). It
# prints `acquired`, each step with its fence and `released`, and exits with 0; with 75 where another holds the lock,
# and with 1 where the lock was lost: the rest of the report is then another's to write.

require "redis"
require "securerandom"

# One hold of a lock.
class RedisLock
  # Another holds the lock.
  class NotAcquired < StandardError; end

  # The lock is held no longer, or nobody knows: write nothing more.
  class Lost < StandardError; end

  # Yields the lock, and releases it whatever becomes of the block. `ttl` is how long it outlives a process that has
  # died, `wait` for how long to queue for it; the rest is for Redis.new. Raises NotAcquired if another still holds it
  # then, and Lost if it was lost before the block was done; an error of the block's own goes first.
  def self.with_lock(name, ttl:, wait: 0, **redis, &work)
    new(name, ttl, redis).hold(wait, &work)
  end

  def initialize(name, ttl, redis)
    @name = name
    @ttl = ttl
    @redis = redis
    @token = SecureRandom.uuid # a new one for each hold
    # Two connections, so that work and heartbeat do not wait for one another. redis-rb asks twice, the second time on a
    # new connection: without an answer to both, the ttl is over. A beat comes after a third of it.
    @work = connect(ttl / 2)
    @heart = connect(ttl / 4)
    @until = 0 # for how long the lock can be counted on
    @lost = @done = false
    @mutex = Mutex.new
    @end = ConditionVariable.new
  end

  def hold(wait)
    owed = true # the release, also where no answer came to the acquire: it may have been granted
    owed = acquire(wait)
    raise NotAcquired, @name unless owed

    yield self
  rescue Exception => error # a signal's, too
    raise
  ensure
    released = release(quietly: error) if owed
    raise Lost, @name unless error || released
  end

  # Whether the lock can be counted on now. Asks nobody: the server has promised the ttl.
  def held? = !@lost && now < @until

  # Raises Lost unless the lock is held: between two steps of the work.
  def check = held? || raise(Lost, @name)

  # A number greater than all before it, for the storage to compare; ask right before each write.
  def fence
    check
    ask(@work, "LOCK.FENCE")
  end

  private

  # Whether it was granted.
  def acquire(wait)
    patient = connect(wait + 5_000) # else redis-rb gives up first
    block = wait.positive? ? ["BLOCK", wait] : []
    # After a lost connection redis-rb sends the command again. The same token gets the same lock, or place.
    return false unless patient.call("LOCK.ACQUIRE", @name, @token, @ttl, *block)

    @until = now + @ttl
    renew # after a wait nobody knows when the ttl began
    check
    @heartbeat = Thread.new { heartbeat }
    true
  ensure
    patient&.close
  end

  def renew
    renewed = now + @ttl # not when the answer comes: by then some of the ttl is over
    ask(@heart, "LOCK.EXTEND", @ttl)
    @until = renewed
  end

  # Null and 0 say that the lock is lost, and so does silence until its time is over.
  def ask(connection, command, *arguments)
    answer = connection.call(command, @name, @token, *arguments)
    return answer if answer&.positive?

    @lost = true
    raise Lost, @name
  rescue Redis::BaseConnectionError
    check
    raise
  end

  def heartbeat
    @mutex.synchronize do
      until @done
        @end.wait(@mutex, @ttl / 3000.0)
        beat unless @done
      end
    end
  end

  def beat
    renew
  rescue StandardError
    nil # no answer says nothing of the lock: the next beat asks again, as long as its time lasts
  end

  def release(quietly:)
    @mutex.synchronize { @done = true and @end.signal }
    @heartbeat&.join # else it would extend what is released, which counts as a miss
    @work.call("LOCK.RELEASE", @name, @token) == 1
  rescue StandardError
    raise unless quietly # the ttl ends the lock, and what went wrong first is what must be heard
  ensure
    [@work, @heart].each(&:close)
  end

  def connect(timeout)
    Redis.new(**@redis, timeout: timeout / 1000.0)
  end

  # By the clock that nobody sets.
  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC, :millisecond)
  end
end

# The part of a database, here in Lua: UPDATE … WHERE fence < :fence
WRITE = <<~LUA
  local last = redis.call('HGET', KEYS[1], 'fence')
  if last and tonumber(last) >= tonumber(ARGV[1]) then return 0 end
  redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'step', ARGV[2])
  return 1
LUA

def write_report(redis, lock, name, steps)
  1.upto(steps) do |step|
    sleep 0.1 # the work
    fence = lock.fence
    written = redis.eval(WRITE, ["report:#{name}"], [fence, step])
    raise RedisLock::Lost, name if written.zero? # refused: a later holder has written

    puts "step #{step}, fence #{fence}"
  end
end

if $PROGRAM_NAME == __FILE__
  $stdout.sync = true
  name, *numbers = ARGV
  ttl, wait, steps = numbers.map { |number| Integer(number) }
  server = { host: "127.0.0.1", port: ENV.fetch("REDIS_PORT", 6379) }
  begin
    RedisLock.with_lock(name, ttl: ttl, wait: wait, **server) do |lock|
      puts "acquired, fence #{lock.fence}"
      write_report(Redis.new(**server), lock, name, steps)
    end
    puts "released"
  rescue RedisLock::NotAcquired
    puts "skipped: another holds the lock"
    exit 75
  rescue RedisLock::Lost
    abort "the lock was lost"
  end
end
