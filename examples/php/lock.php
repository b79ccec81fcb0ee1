#!/usr/bin/env php
<?php

// A lock for phpredis (5.3; PHP 8.1): Lock::hold releases it whatever becomes of the work, which asks for a fence, and
// so extends the lock where that is due, before each write.
//
//     $connect = function (): Redis {
//         $redis = new Redis();
//         $redis->connect('redis');
//         return $redis;
//     };
//     Lock::hold($connect, 'invoice:7', 30_000, 30_000, function (Lock $lock): void { // in milliseconds
//         pay(7, $lock->fence()); // UPDATE … SET paid = true, fence = :fence WHERE id = 7 AND fence < :fence
//     });
//
// PHP has no thread for a heartbeat: a step of the work must take less than two thirds of the ttl.
//
// It is for one server: not for RedisCluster, whose commands go another way. To use it, copy the classes. As a program
// it writes a report in steps, under the lock:
//
//     lock.php NAME TTL WAIT STEPS
//
// TTL and WAIT are in milliseconds, and a WAIT of 0 is none. The server is at 127.0.0.1, port $REDIS_PORT (6379). It
// prints `acquired`, each step with its fence and `released`, and exits with 0; with 75 where another holds the lock,
// and with 1 where the lock was lost: the rest of the report is then another's to write.

declare(strict_types=1);

/** Another holds the lock. */
final class LockNotAcquired extends RuntimeException
{
}

/** The lock is held no longer, or nobody knows: write nothing more. */
final class LockLost extends RuntimeException
{
}

/** One hold of a lock. */
final class Lock
{
    /** @var ?array<string, self> by their tokens */
    private static ?array $held = null;

    private readonly string $token;
    private ?Redis $redis = null;
    private int $until = 0; // for how long the lock can be counted on

    /**
     * Calls $work with the lock, on a connection of its own. $ttl is how long the lock outlives a process that has
     * died, and $wait for how long to queue for it.
     *
     * @param Closure(): Redis $connect
     * @param Closure(Lock): mixed $work
     * @throws LockNotAcquired if another still holds it after the wait
     * @throws LockLost if it was lost before the work was done; an exception of the work's own goes first
     */
    public static function hold(Closure $connect, string $name, int $ttl, int $wait, Closure $work): mixed
    {
        $lock = new self($connect, $name, $ttl);
        $lock->acquire($wait);
        if (self::$held === null) {
            // exit() and a fatal error run neither catch nor finally.
            register_shutdown_function(function (): void {
                foreach (self::$held as $lock) {
                    $lock->releaseQuietly();
                }
            });
        }
        self::$held[$lock->token] = $lock;
        try {
            $result = $work($lock);
        } catch (Throwable $error) {
            $lock->releaseQuietly();
            throw $error;
        }
        if (!$lock->release()) {
            throw new LockLost($name);
        }
        return $result;
    }

    private function __construct(
        private readonly Closure $connect,
        private readonly string $name,
        private readonly int $ttl,
    ) {
        $this->token = bin2hex(random_bytes(16)); // a new one for each hold
    }

    /** Throws LockLost unless the lock can be counted on now. Asks nobody: the server has promised the ttl. */
    public function check(): void
    {
        if (self::now() >= $this->until) {
            throw new LockLost($this->name);
        }
    }

    /** A number greater than all before it, for the storage to compare; ask right before each write. */
    public function fence(): int
    {
        $this->check();
        if ($this->until - self::now() < $this->ttl * 2 / 3) {
            try {
                $this->extend();
            } catch (RedisException) {
                // No answer says nothing of the lock: the next step asks again, as long as its time lasts.
            }
        }
        return $this->ask('LOCK.FENCE');
    }

    private function acquire(int $wait): void
    {
        $block = $wait > 0 ? ['BLOCK', (string) $wait] : [];
        try {
            // phpredis must not give up before the server does.
            $granted = $this->send($wait + 5_000, 'LOCK.ACQUIRE', (string) $this->ttl, ...$block);
            if ($granted) {
                $this->until = self::now() + $this->ttl;
                $this->extend(); // after a wait nobody knows when the ttl began
            }
        } catch (Throwable $error) {
            $this->releaseQuietly(); // it may have been granted all the same
            throw $error;
        }
        if (!$granted) {
            throw new LockNotAcquired($this->name);
        }
        $this->check();
    }

    private function extend(): void
    {
        $until = self::now() + $this->ttl; // not when the answer comes: by then some of the ttl is over
        $this->ask('LOCK.EXTEND', (string) $this->ttl);
        $this->until = $until;
    }

    private function release(): bool
    {
        unset(self::$held[$this->token]);
        return $this->send(5_000, 'LOCK.RELEASE') === 1;
    }

    private function releaseQuietly(): void
    {
        try {
            $this->release();
        } catch (RedisException) {
            // The ttl ends the lock, and what went wrong first is what must be heard.
        }
    }

    /** Null and 0 say that the lock is lost, and so does silence until its time is over. */
    private function ask(string $command, string ...$arguments): int
    {
        try {
            try {
                $answer = $this->send(intdiv($this->ttl, 4) + 1, $command, ...$arguments);
            } catch (RedisException) {
                // It may be just this connection that has gone silent.
                $answer = $this->send($this->ttl, $command, ...$arguments);
            }
        } catch (RedisException $error) {
            $this->check();
            throw $error;
        }
        if (!$answer) {
            $this->until = 0;
            throw new LockLost($this->name);
        }
        return $answer;
    }

    private function send(int $patience, string $command, string ...$arguments): mixed
    {
        try {
            $this->redis ??= ($this->connect)();
            $this->redis->setOption(Redis::OPT_READ_TIMEOUT, $patience / 1000);
            $this->redis->clearLastError();
            $reply = $this->redis->rawCommand($command, $this->name, $this->token, ...$arguments);
        } catch (RedisException $error) {
            $this->redis = null; // a reply that comes late would be taken for that of the next command
            throw $error;
        }
        // phpredis has false for null (or null, where it is told so) as well as for most errors.
        $error = $this->redis->getLastError();
        return $error === null ? $reply : throw new RedisException($error);
    }

    /** In milliseconds, by the clock that nobody sets. */
    private static function now(): int
    {
        return intdiv(hrtime(true), 1_000_000);
    }
}

// The part of a database, here in Lua: UPDATE … WHERE fence < :fence
const WRITE = <<<'LUA'
    local last = redis.call('HGET', KEYS[1], 'fence')
    if last and tonumber(last) >= tonumber(ARGV[1]) then return 0 end
    redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'step', ARGV[2])
    return 1
    LUA;

function write_report(Redis $redis, Lock $lock, string $name, int $steps): void
{
    for ($step = 1; $step <= $steps; $step++) {
        usleep(100_000); // the work
        $fence = $lock->fence();
        $written = $redis->eval(WRITE, ["report:$name", $fence, $step], 1);
        if ($redis->getLastError() !== null) {
            throw new RedisException($redis->getLastError());
        }
        if ($written !== 1) {
            throw new LockLost($name); // refused: a later holder has written
        }
        echo "step $step, fence $fence\n";
    }
}

[, $name, $ttl, $wait, $steps] = $argv;
$connect = function (): Redis {
    $redis = new Redis();
    $redis->connect('127.0.0.1', (int) (getenv('REDIS_PORT') ?: 6379), 5.0);
    return $redis;
};
pcntl_async_signals(true);
try {
    Lock::hold($connect, $name, (int) $ttl, (int) $wait, function (Lock $lock) use ($connect, $name, $steps): void {
        // Kubernetes and systemd end a process by SIGTERM. From here on that ends the work, and the lock is released.
        pcntl_signal(SIGTERM, fn () => throw new RuntimeException('ended by SIGTERM'));
        echo "acquired, fence {$lock->fence()}\n";
        write_report($connect(), $lock, $name, (int) $steps);
    });
    echo "released\n";
} catch (LockNotAcquired) {
    echo "skipped: another holds the lock\n";
    exit(75);
} catch (LockLost) {
    fwrite(STDERR, "the lock was lost\n");
    exit(1);
}
