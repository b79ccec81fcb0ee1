use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use redis_module::raw::{RedisModuleCtx, RedisModuleTimerID};

use super::api::OK;
use super::boundary::boundary;
use super::{Context, MainThread};
use crate::HOOKS;
use crate::error::Error;

/// The module's one timer, and the Unix time in milliseconds at which it fires.
static TIMER: MainThread<Option<(RedisModuleTimerID, i64)>> = MainThread::new(None);

/// Sees to it that the module is called at a Unix time in milliseconds, or a little earlier; or not at all. A server
/// does not unload a module that has a timer.
pub(crate) fn set_timer(context: &Context, due: Option<i64>) -> Result<(), Error> {
    let set = TIMER.with(|timer| *timer)?;
    if let (Some((_, fires)), Some(due)) = (set, due)
        && fires <= due
    {
        return Ok(());
    }
    if let Some((id, _)) = set {
        TIMER.with(|timer| *timer = None)?;
        // SAFETY: the context is alive, and the timer has not fired: `fired` forgets it first.
        unsafe { (context.api.stop_timer)(context.ctx(), id, ptr::null_mut()) };
    }
    let Some(due) = due else { return Ok(()) };
    let period = due.saturating_sub(context.now().milliseconds()).max(0);
    // SAFETY: the context is alive, and `fired` has the signature asked for.
    let id = unsafe { (context.api.create_timer)(context.ctx(), period, Some(fired), ptr::null_mut()) };
    wake(context);
    TIMER.with(|timer| *timer = Some((id, due)))
}

/// How many empty jobs the server has still to do.
static JOBS: AtomicUsize = AtomicUsize::new(0);

/// Redis 7.0 reckons how long it may sleep before it sees a timer that was made on the way to sleep: it is woken by an
/// empty job.
fn wake(context: &Context) {
    if context.api.cached_microseconds.is_none() {
        // SAFETY: `nothing` has the signature asked for.
        let status = unsafe { (context.api.event_loop_add_one_shot)(Some(nothing), ptr::null_mut()) };
        if status == OK {
            JOBS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

extern "C" fn nothing(_data: *mut c_void) {
    JOBS.fetch_sub(1, Ordering::Relaxed);
}

/// Whether the server will call an empty job, and so the module must stay loaded: the server itself looks only at
/// timers.
pub(super) fn has_jobs() -> bool {
    JOBS.load(Ordering::Relaxed) > 0
}

extern "C" fn fired(ctx: *mut RedisModuleCtx, _data: *mut c_void) {
    // A timer must not be stopped while it fires.
    let _ = TIMER.with(|timer| *timer = None);
    // SAFETY: the context lives until this function returns.
    if let Some(context) = unsafe { Context::new(ctx) } {
        let _ = boundary(|| (HOOKS.due)(&context));
    }
}
