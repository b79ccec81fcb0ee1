// A lock for hiredis (0.14 and 1): who works asks for a fence before each write, and so extends the lock where that is
// due.
//
//     struct redis redis = {.host = "redis", .port = 6379};
//     struct lock lock = {.redis = &redis, .name = "invoice:7", .length = 9, .ttl = 30000}; // in milliseconds
//     long long fence;
//     if (lock_acquire(&lock, 30000) == LOCK_HELD) {
//         if (lock_fence(&lock, &fence) == LOCK_HELD)
//             pay(7, fence); // UPDATE … SET paid = true, fence = :fence WHERE id = 7 AND fence < :fence
//         if (lock_release(&lock) == LOCK_LOST)
//             complain();
//     }
//
// It has no thread for a heartbeat: a step of the work must take less than two thirds of the ttl. The program must
// ignore SIGPIPE. It is for one server, not for a cluster.
//
// To use it, copy the part up to WRITE. As a program it writes a report in steps, under the lock:
//
//     lock NAME TTL WAIT STEPS
//
// TTL and WAIT are in milliseconds, and a WAIT of 0 is none. The server is at 127.0.0.1, port $REDIS_PORT (6379). It
// prints `acquired`, each step with its fence and `released`, and exits with 0; with 75 where another holds the lock,
// and with 1 where the lock was lost: the rest of the report is then another's to write. Built by
//
//     cc -o lock lock.c $(pkg-config --cflags --libs hiredis)

#include <errno.h>
#include <hiredis.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

// A server, to which it connects again where it must.
struct redis {
    const char *host;
    int port;
    redisContext *context;
    char error[256]; // the first one, which is the one to be heard
};

// One hold of a lock.
struct lock {
    struct redis *redis;
    const char *name;
    size_t length; // of the name, which may be any bytes
    long long ttl; // how long it outlives a process that has died, in milliseconds
    char token[33];
    long long until; // for how long the lock can be counted on
};

enum lock_state {
    LOCK_HELD,
    LOCK_NOT_ACQUIRED, // another holds it
    LOCK_LOST,         // it is held no longer, or nobody knows: write nothing more
    LOCK_ERROR         // redis->error says which
};

static redisReply *failed(struct redis *redis, const char *error)
{
    if (!redis->error[0])
        snprintf(redis->error, sizeof redis->error, "%s", error);
    return NULL;
}

// Sends a command, and waits that many milliseconds for the reply. NULL: an error, of the server's too.
static redisReply *ask(struct redis *redis, long long patience, const char *format, ...)
{
    struct timeval timeout = {.tv_sec = patience / 1000, .tv_usec = patience % 1000 * 1000};
    redisReply *reply = NULL;
    for (int tries = 1; reply == NULL; tries++) {
        if (redis->context == NULL)
            redis->context = redisConnectWithTimeout(redis->host, redis->port, timeout);
        redisContext *context = redis->context;
        if (context == NULL)
            return failed(redis, "out of memory");
        if (!context->err && redisSetTimeout(context, timeout) == REDIS_OK) {
            va_list arguments;
            va_start(arguments, format);
            reply = redisvCommand(context, format, arguments);
            va_end(arguments);
        }
        if (reply == NULL) {
            // A context does not outlive an error. One that the server has closed is replaced: with the same token it
            // does no harm if the command arrives twice.
            bool again = context->err == REDIS_ERR_EOF && tries == 1;
            if (!again)
                failed(redis, context->errstr);
            redisFree(context);
            redis->context = NULL;
            if (!again)
                return NULL;
        }
    }
    if (reply->type == REDIS_REPLY_ERROR) {
        failed(redis, reply->str);
        freeReplyObject(reply);
        return NULL;
    }
    return reply;
}

// In milliseconds, by the clock that nobody sets.
static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

// Whether the lock can be counted on now. Asks nobody: the server has promised the ttl.
static bool lock_held(const struct lock *lock)
{
    return now() < lock->until;
}

// Takes the number out of the answer. Null and 0 say that the lock is lost, and so does silence until its time is over.
static enum lock_state answer(struct lock *lock, redisReply *reply, long long *number)
{
    if (reply == NULL)
        return lock_held(lock) ? LOCK_ERROR : LOCK_LOST;
    *number = reply->integer; // 0 for null
    freeReplyObject(reply);
    if (*number == 0)
        lock->until = 0;
    return *number == 0 ? LOCK_LOST : LOCK_HELD;
}

static enum lock_state extend(struct lock *lock)
{
    long long until = now() + lock->ttl; // not when the answer comes: by then some of the ttl is over
    long long extended;
    redisReply *reply = ask(lock->redis, lock->ttl / 4 + 1, "LOCK.EXTEND %b %s %lld", lock->name, lock->length,
                            lock->token, lock->ttl);
    enum lock_state state = answer(lock, reply, &extended);
    if (state == LOCK_HELD)
        lock->until = until;
    return state;
}

// A number greater than all before it, for the storage to compare; ask right before each write.
enum lock_state lock_fence(struct lock *lock, long long *fence)
{
    if (!lock_held(lock))
        return LOCK_LOST;
    // No answer says nothing of the lock: the next step asks again, as long as its time lasts.
    if (lock->until - now() < lock->ttl * 2 / 3)
        extend(lock);
    enum lock_state state = lock_held(lock) ? LOCK_ERROR : LOCK_LOST;
    for (int tries = 1; state == LOCK_ERROR && tries <= 2; tries++) {
        lock->redis->error[0] = '\0';
        // It may be just this connection that has gone silent.
        long long patience = tries == 1 ? lock->ttl / 4 + 1 : lock->ttl;
        redisReply *reply = ask(lock->redis, patience, "LOCK.FENCE %b %s", lock->name, lock->length, lock->token);
        state = answer(lock, reply, fence);
    }
    return state;
}

// Gives it back, whatever has become of the work.
enum lock_state lock_release(struct lock *lock)
{
    redisReply *reply = ask(lock->redis, 5000, "LOCK.RELEASE %b %s", lock->name, lock->length, lock->token);
    if (reply == NULL)
        return LOCK_ERROR;
    bool released = reply->integer == 1;
    freeReplyObject(reply);
    return released ? LOCK_HELD : LOCK_LOST;
}

// Takes the lock, and queues for it for up to `wait` milliseconds.
enum lock_state lock_acquire(struct lock *lock, long long wait)
{
    unsigned char random[16];
    if (getentropy(random, sizeof random) != 0) {
        failed(lock->redis, strerror(errno));
        return LOCK_ERROR;
    }
    for (int i = 0; i < 16; i++) // a new token for each hold
        snprintf(lock->token + 2 * i, 3, "%02x", random[i]);
    long long patience = wait + 5000; // else hiredis gives up before the server does
    redisReply *reply = wait > 0 ? ask(lock->redis, patience, "LOCK.ACQUIRE %b %s %lld BLOCK %lld", lock->name,
                                       lock->length, lock->token, lock->ttl, wait)
                                 : ask(lock->redis, patience, "LOCK.ACQUIRE %b %s %lld", lock->name, lock->length,
                                       lock->token, lock->ttl);
    enum lock_state state = LOCK_ERROR;
    if (reply != NULL) {
        bool granted = reply->type == REDIS_REPLY_ARRAY;
        freeReplyObject(reply);
        if (!granted)
            return LOCK_NOT_ACQUIRED;
        lock->until = now() + lock->ttl;
        state = extend(lock); // after a wait nobody knows when the ttl began
    }
    if (state != LOCK_HELD)
        lock_release(lock); // it may have been granted all the same
    return state;
}

// The part of a database, here in Lua: UPDATE … WHERE fence < :fence
static const char WRITE[] =
    "local last = redis.call('HGET', KEYS[1], 'fence')\n"
    "if last and tonumber(last) >= tonumber(ARGV[1]) then return 0 end\n"
    "redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'step', ARGV[2])\n"
    "return 1";

static volatile sig_atomic_t ended;

static void end(int number)
{
    (void)number;
    ended = 1;
}

static enum lock_state write_report(struct lock *lock, long steps)
{
    long long fence;
    enum lock_state state = lock_fence(lock, &fence);
    if (state == LOCK_HELD)
        printf("acquired, fence %lld\n", fence);
    for (long step = 1; state == LOCK_HELD && step <= steps; step++) {
        usleep(100000); // the work
        if (ended) {
            failed(lock->redis, "ended by SIGTERM");
            return LOCK_ERROR;
        }
        state = lock_fence(lock, &fence);
        if (state != LOCK_HELD)
            break;
        redisReply *reply = ask(lock->redis, 5000, "EVAL %s 1 report:%b %lld %ld", WRITE, lock->name, lock->length,
                                fence, step);
        if (reply == NULL)
            return LOCK_ERROR;
        bool written = reply->integer == 1;
        freeReplyObject(reply);
        if (!written)
            return LOCK_LOST; // refused: a later holder has written
        printf("step %ld, fence %lld\n", step, fence);
    }
    return state;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: lock NAME TTL WAIT STEPS\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN); // hiredis gets an error instead, from a connection that has ended
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *port = getenv("REDIS_PORT");
    struct redis redis = {.host = "127.0.0.1", .port = port ? atoi(port) : 6379};
    struct lock lock = {.redis = &redis, .name = argv[1], .length = strlen(argv[1]), .ttl = atoll(argv[2])};

    enum lock_state state = lock_acquire(&lock, atoll(argv[3]));
    if (state == LOCK_HELD) {
        signal(SIGTERM, end); // by which Kubernetes and systemd end a process: the lock is released then
        state = write_report(&lock, atol(argv[4]));
        enum lock_state released = lock_release(&lock);
        if (state == LOCK_HELD)
            state = released;
    }
    redisFree(redis.context);
    switch (state) {
    case LOCK_HELD:
        puts("released");
        return 0;
    case LOCK_NOT_ACQUIRED:
        puts("skipped: another holds the lock");
        return 75;
    case LOCK_LOST:
        fprintf(stderr, "the lock was lost\n");
        return 1;
    default:
        fprintf(stderr, "%s\n", redis.error);
        return 1;
    }
}
