use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use redis_module::raw::{RedisModuleBlockedClient, RedisModuleCtx, RedisModuleString};

use super::api::{ERR, OK, api};
use super::boundary::boundary;
use super::{Call, Context, Failure, Reply};
use crate::HOOKS;

/// A client that waits for its answer.
///
/// The server wants to be told exactly once that it waits no longer, also where it has gone. That is
/// [`BlockedClient::answer`] for the one who knows the answer, and done here for a client that leaves by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockedClient(NonNull<RedisModuleBlockedClient>);

// SAFETY: a name for the client, used under the server's lock alone.
unsafe impl Send for BlockedClient {}

/// What a client is answered in the end.
pub(crate) type Answer = Result<Reply<'static>, Failure>;

impl BlockedClient {
    /// Has the client of a call wait. None if it may not; the call is then answered as always.
    pub(crate) fn block(call: &Call<'_>) -> Option<Self> {
        // No timeout of the server's: those are as coarse as its `hz`. The callback is for `CLIENT UNBLOCK`.
        // SAFETY: the context is alive, and the callbacks have the signatures asked for.
        let handle = unsafe { (call.api.block_client)(call.ctx(), Some(reply), Some(unblocked), Some(free_answer), 0) };
        let client = Self(NonNull::new(handle)?);
        // SAFETY: the handle has just been made.
        unsafe { (call.api.set_disconnect_callback)(handle, Some(disconnected)) };
        Some(client)
    }

    /// Answers the client, which is then no longer blocked.
    pub(crate) fn answer(self, answer: Answer) {
        let answer: *mut Answer = Box::into_raw(Box::new(answer));
        self.unblock(answer.cast());
    }

    fn unblock(self, answer: *mut c_void) {
        if let Some(api) = api() {
            // SAFETY: the handle is valid until this call, which is made once for each; the answer is freed by
            // `free_answer`.
            unsafe { (api.unblock_client)(self.0.as_ptr(), answer) };
        }
    }

    /// The client for which the server calls back.
    fn of(context: &Context) -> Option<Self> {
        // SAFETY: the context is alive.
        let handle = unsafe { (context.api.get_blocked_client_handle)(context.ctx()) };
        NonNull::new(handle).map(Self)
    }
}

/// The server asks for the answer of a client that has been unblocked and is still there.
extern "C" fn reply(ctx: *mut RedisModuleCtx, _argv: *mut *mut RedisModuleString, _argc: c_int) -> c_int {
    // SAFETY: the context lives until this function returns.
    let Some(context) = (unsafe { Context::new(ctx) }) else {
        return ERR;
    };
    if let Some(client) = BlockedClient::of(&context) {
        // A panic has been reported by its hook; the client gets its answer all the same.
        let _ = boundary(|| (HOOKS.answered)(client, context.client()));
    }
    // SAFETY: the context is alive.
    let answer = unsafe { (context.api.get_blocked_client_private_data)(context.ctx()) };
    // SAFETY: it is what `answer` handed over, and is freed only after this function has returned.
    match unsafe { answer.cast::<Answer>().as_ref() } {
        Some(Ok(reply)) => context.reply(reply),
        Some(Err(failure)) => context.reply_failure(failure),
        None => context.reply(&Reply::Null),
    }
    OK
}

/// The server frees an answer, given or not.
extern "C" fn free_answer(_ctx: *mut RedisModuleCtx, answer: *mut c_void) {
    // SAFETY: it is what `answer` handed over, and the server frees it once.
    let answer = unsafe { Box::from_raw(answer.cast::<Answer>()) };
    let _ = boundary(|| drop(answer));
}

/// `CLIENT UNBLOCK … TIMEOUT`: the server is about to let the client go on.
extern "C" fn unblocked(ctx: *mut RedisModuleCtx, _argv: *mut *mut RedisModuleString, _argc: c_int) -> c_int {
    // SAFETY: the context lives until this function returns.
    let Some(context) = (unsafe { Context::new(ctx) }) else {
        return ERR;
    };
    if let Some(client) = BlockedClient::of(&context)
        && boundary(|| (HOOKS.unblocked)(&context, client))
            .flatten()
            .unwrap_or(false)
    {
        context.reply(&Reply::Null);
        client.unblock(ptr::null_mut());
    }
    OK
}

/// The client has gone, or was unblocked with an error: before its answer, or between the answer and its delivery.
extern "C" fn disconnected(ctx: *mut RedisModuleCtx, handle: *mut RedisModuleBlockedClient) {
    // SAFETY: the context lives until this function returns.
    let Some(context) = (unsafe { Context::new(ctx) }) else {
        return;
    };
    if let Some(client) = NonNull::new(handle).map(BlockedClient)
        && boundary(|| (HOOKS.gone)(&context, client)).flatten().unwrap_or(false)
    {
        client.unblock(ptr::null_mut());
    }
}
