// A lock for go-redis (v9): a heartbeat extends it until it is released, and the context of the work ends when it is
// lost.
//
//	lock, ctx, err := Acquire(ctx, rdb, "invoice:7", 30*time.Second, 30*time.Second)
//	if err != nil {
//		return err
//	}
//	defer func() { err = lock.Release(err) }() // err is the function's named result
//	fence, err := lock.Fence(ctx)
//	if err != nil {
//		return err
//	}
//	return pay(ctx, 7, fence) // UPDATE … SET paid = true, fence = $1 WHERE id = 7 AND fence < $1
//
// It is for one server, not for redis.ClusterClient. To use it (with Go 1.22 or later), copy this file; main.go is a
// program that does.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
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
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		return nil, nil, err
	}
	token := hex.EncodeToString(random) // a new one for each hold
	args := []any{"LOCK.ACQUIRE", name, token, ttl.Milliseconds()}
	if wait >= time.Millisecond {
		args = append(args, "BLOCK", wait.Milliseconds())
	}
	// A client of its own, as go-redis does not heed ctx while it waits for a reply: when that is closed, its connection
	// ends, and with it the place in the queue.
	options := *rdb.Options()
	options.ReadTimeout = wait + 5*time.Second // go-redis must not give up before the server does
	options.PushNotificationProcessor = nil    // no two clients may share one
	waiting := redis.NewClient(&options)
	defer context.AfterFunc(ctx, func() { _ = waiting.Close() })()
	// If go-redis has lost the reply it asks again: the same token gets the same lock.
	err := waiting.Do(ctx, args...).Err()
	_ = waiting.Close()
	if errors.Is(err, redis.Nil) {
		return nil, nil, ErrNotAcquired
	}

	l := &Lock{rdb: rdb, name: name, token: token, ttl: ttl, stopped: make(chan struct{})}
	l.work, l.end = context.WithCancelCause(ctx)
	l.expiry = time.AfterFunc(ttl, func() { l.end(ErrLost) })
	if err == nil {
		err = l.extend() // after a wait nobody knows when the ttl began
	}
	if err != nil {
		close(l.stopped)
		_ = l.Release(err) // it may have been granted all the same
		return nil, nil, cmp.Or(context.Cause(ctx), err)
	}
	go l.heartbeat()
	return l, l.work, nil
}

// Fence returns a number greater than all before it, for the storage to compare; ask right before each write. With the
// context of the work, the error is ErrLost where the lock is lost.
func (l *Lock) Fence(ctx context.Context) (int64, error) {
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return l.ask(ctx, l.ttl/2, "LOCK.FENCE")
}

// Release gives the lock back, and returns the error of the work; ErrLost as well if the lock was lost before.
func (l *Lock) Release(work error) error {
	l.end(nil)
	<-l.stopped // else it would extend what is released, which counts as a miss
	l.expiry.Stop()
	released, err := l.rdb.WithTimeout(5*time.Second).Do(context.Background(), "LOCK.RELEASE", l.name, l.token).Bool()
	if errors.Is(context.Cause(l.work), ErrLost) || err == nil && !released {
		err = ErrLost
	}
	if errors.Is(work, err) {
		return work
	}
	return errors.Join(work, err)
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
	_, err := l.ask(l.work, l.ttl/4, "LOCK.EXTEND", l.ttl.Milliseconds())
	if err == nil {
		l.expiry.Reset(time.Until(sent.Add(l.ttl)))
	}
	return err
}

// ask returns what the holder is answered; null and 0 say that the lock is lost.
func (l *Lock) ask(ctx context.Context, patience time.Duration, command string, args ...any) (int64, error) {
	args = append([]any{command, l.name, l.token}, args...)
	// go-redis asks again, on another connection: it may be just this one that has gone silent.
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
