// A program that writes a report in steps, under the lock of lock.go:
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
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// The part of a database, here in Lua: UPDATE … WHERE fence < :fence
var write = redis.NewScript(`
	local last = redis.call('HGET', KEYS[1], 'fence')
	if last and tonumber(last) >= tonumber(ARGV[1]) then return 0 end
	redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'step', ARGV[2])
	return 1`)

func run(rdb *redis.Client, name string, ttl, wait time.Duration, steps int) (err error) {
	// Kubernetes and systemd end a process by SIGTERM. That ends the wait, or the work, and the lock is released.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	lock, ctx, err := Acquire(ctx, rdb, name, ttl, wait)
	if err != nil {
		return err
	}
	defer func() { err = lock.Release(err) }()
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
	ttl, err := time.ParseDuration(os.Args[2] + "ms")
	wait, err2 := time.ParseDuration(os.Args[3] + "ms")
	steps, err3 := strconv.Atoi(os.Args[4])
	if err := errors.Join(err, err2, err3); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + cmp.Or(os.Getenv("REDIS_PORT"), "6379")})
	switch err := run(rdb, os.Args[1], ttl, wait, steps); {
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
