// A lock for go-redis (v9): a heartbeat extends it until it is released, and the context of the work ends when it is
// lost.
//
//	lock, ctx, err := Acquire(ctx, rdb, "invoice:7", 30*time.Second, 30*time.Second)
//	if err != nil {
//		return err
//	}
//	defer func() { err = errors.Join(err, lock.Release()) }() // err is the function's named result
//	fence, err := lock.Fence(ctx)
//	if err != nil {
//		return err
//	}
//	return pay(ctx, 7, fence) // UPDATE … SET paid = true, fence = $1 WHERE id = 7 AND fence < $1
//
// To use it, copy the part up to write. As a program it writes a report in steps, under the lock:
//
//	go mod tidy && go run . NAME TTL WAIT STEPS
//
// TTL and WAIT are in milliseconds, and a WAIT of 0 is none. The server is at 127.0.0.1, port $REDIS_PORT (6379). It
// prints `acquired`, each step with its fence and `released`, and exits with 0; with 75 where another holds the lock,
// and with 1 where the lock was lost: the rest of the report is then another's to write.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	ErrNotAcquired = errors.New("another holds the lock")
	// ErrLost says that the lock is held no longer, or that nobody knows: write nothing more.
	ErrLost = errors.New("the lock was lost")
)

// Lock is one hold of a lock.
type Lock struct {
	rdb         *redis.Client
	name, token string
	ttl         time.Duration
	work        context.Context
	end         context.CancelCauseFunc // of work
	expiry      *time.Timer
	stopped     chan struct{}
}

// Acquire takes the lock name. Its ttl is how long it outlives a process that has died, and wait for how long to queue
// for it; if another still holds it then, the error is ErrNotAcquired.
//
// The context that it returns is for the work. It ends when the lock is lost, with ErrLost as its cause.
func Acquire(ctx context.Context, rdb *redis.Client, name string, ttl, wait time.Duration) (
	*Lock, context.Context, error,
) {
	if ttl < time.Millisecond {
		return nil, nil, fmt.Errorf("a ttl of %v is too short", ttl)
	}
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		return nil, nil, err
	}
	token := hex.EncodeToString(random) // a new one for each hold
	args := []any{"LOCK.ACQUIRE", name, token, ttl.Milliseconds()}
	if wait >= time.Millisecond {
		args = append(args, "BLOCK", wait.Milliseconds())
	}
	// go-redis must not give up first. If it has lost the reply it asks again: the same token gets the same lock.
	err := rdb.WithTimeout(wait+5*time.Second).Do(ctx, args...).Err()
	if errors.Is(err, redis.Nil) {
		return nil, nil, ErrNotAcquired
	}

	l := &Lock{rdb: rdb, name: name, token: token, ttl: ttl, stopped: make(chan struct{})}
	l.work, l.end = context.WithCancelCause(ctx)
	l.expiry = time.AfterFunc(ttl, func() { l.end(ErrLost) })
	if err == nil {
		err = l.extend() // after a wait nobody knows when the ttl began
	}
	go l.heartbeat()
	if err != nil {
		_ = l.Release() // it may have been granted all the same
		return nil, nil, err
	}
	return l, l.work, nil
}

// Fence returns a number greater than all before it, for the storage to compare; ask right before each write. With the
// context of the work, the error is ErrLost where the lock is lost.
func (l *Lock) Fence(ctx context.Context) (int64, error) {
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return l.ask(ctx, l.ttl, "LOCK.FENCE")
}

// Release gives the lock back. The error is ErrLost if it was lost before.
func (l *Lock) Release() error {
	l.end(nil)
	<-l.stopped // else it would extend what is released, which counts as a miss
	l.expiry.Stop()
	released, err := l.rdb.WithTimeout(l.ttl/3).Do(context.Background(), "LOCK.RELEASE", l.name, l.token).Bool()
	if errors.Is(context.Cause(l.work), ErrLost) || err == nil && !released {
		return ErrLost
	}
	return err
}

func (l *Lock) heartbeat() {
	defer close(l.stopped)
	ticker := time.NewTicker(l.ttl / 3)
	defer ticker.Stop()
	for {
		select {
		case <-l.work.Done():
			return
		case <-ticker.C:
			// No answer says nothing of the lock. The next beat asks again, as long as its time lasts.
			_ = l.extend()
		}
	}
}

func (l *Lock) extend() error {
	sent := time.Now() // not when the answer comes: by then some of the ttl is over
	_, err := l.ask(l.work, l.ttl/3, "LOCK.EXTEND", l.ttl.Milliseconds())
	if err == nil {
		l.expiry.Reset(time.Until(sent.Add(l.ttl)))
	}
	return err
}

// ask returns what the holder is answered; null and 0 say that the lock is lost.
func (l *Lock) ask(ctx context.Context, patience time.Duration, command string, args ...any) (int64, error) {
	args = append([]any{command, l.name, l.token}, args...)
	answer, err := l.rdb.WithTimeout(patience).Do(ctx, args...).Int64()
	if errors.Is(err, redis.Nil) || err == nil && answer == 0 {
		l.end(ErrLost)
		return 0, ErrLost
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return answer, err
}

// The part of a database, here in Lua: UPDATE … WHERE fence < :fence
var write = redis.NewScript(`
	local last = redis.call('HGET', KEYS[1], 'fence')
	if last and tonumber(last) >= tonumber(ARGV[1]) then return 0 end
	redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'step', ARGV[2])
	return 1`)

func run(rdb *redis.Client, name string, ttl, wait time.Duration, steps int) (err error) {
	lock, ctx, err := Acquire(context.Background(), rdb, name, ttl, wait)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	// Kubernetes and systemd end a process by SIGTERM. From here on that ends the work, and the lock is released.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	fence, err := lock.Fence(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("acquired, fence %d\n", fence)
	for step := 1; step <= steps; step++ {
		time.Sleep(100 * time.Millisecond) // the work
		fence, err := lock.Fence(ctx)
		if err != nil {
			return err
		}
		written, err := write.Run(ctx, rdb, []string{"report:" + name}, fence, step).Bool()
		if err != nil {
			return err
		}
		if !written {
			return ErrLost // refused: a later holder has written
		}
		fmt.Printf("step %d, fence %d\n", step, fence)
	}
	return nil
}

func main() {
	var numbers [3]int
	for i := range numbers {
		numbers[i], _ = strconv.Atoi(os.Args[2+i])
	}
	ttl, wait := time.Duration(numbers[0])*time.Millisecond, time.Duration(numbers[1])*time.Millisecond
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + cmp.Or(os.Getenv("REDIS_PORT"), "6379")})
	switch err := run(rdb, os.Args[1], ttl, wait, numbers[2]); {
	case err == nil:
		fmt.Println("released")
	case errors.Is(err, ErrNotAcquired):
		fmt.Println("skipped: another holds the lock")
		os.Exit(75)
	case errors.Is(err, ErrLost):
		fmt.Fprintln(os.Stderr, ErrLost)
		os.Exit(1)
	default:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
