use std::ffi::{CStr, CString};
use std::ptr::NonNull;

use redis_module::raw::REDISMODULE_CTX_FLAGS_CLUSTER;

use super::call_reply::CallReply;
use super::{Argument, Context};

/// The length of a node's name in a cluster.
const NODE_NAME: usize = 40;

impl Context {
    /// Where to send who waits for a key whose slot has moved to another node: the redirection that a command would
    /// get. None while the slot is this node's, or nobody's.
    ///
    /// The server sends on by itself only those clients that it has blocked on keys.
    pub(crate) fn moved(&self, key: Argument<'_>) -> Option<CString> {
        if !self.has_flag(REDISMODULE_CTX_FLAGS_CLUSTER) || !self.ask(c"EXISTS", None, Some(key))?.view().is_error() {
            return None;
        }
        let slot = self.ask(c"CLUSTER", Some(c"KEYSLOT"), Some(key))?.integer().ok()?;
        let ranges = self.ask(c"CLUSTER", Some(c"SLOTS"), None)?;
        let range = ranges.view().elements().find(|range| {
            let end = |index| range.element(index).map_or(-1, |end| end.integer());
            (end(0)..=end(1)).contains(&slot)
        })?;
        let owner = range.element(2)?;
        if owner.element(2)?.text() == self.node_name()? {
            return None;
        }
        let mut text = format!("MOVED {slot} ").into_bytes();
        text.extend(owner.element(0)?.text());
        text.extend(format!(":{}", owner.element(1)?.integer()).into_bytes());
        CString::new(text).ok()
    }

    /// Calls a command that only reads.
    fn ask(
        &self,
        command: &'static CStr,
        subcommand: Option<&'static CStr>,
        key: Option<Argument<'_>>,
    ) -> Option<CallReply> {
        let (ctx, command) = (self.ctx(), command.as_ptr());
        let reply = match (subcommand, key) {
            (None, None) => return None,
            // SAFETY: in each of these, the strings end in NUL, and the format takes what follows it, which is alive.
            (None, Some(key)) => unsafe { (self.api.call)(ctx, command, c"Es".as_ptr(), key.raw()) },
            // SAFETY: as above.
            (Some(word), None) => unsafe { (self.api.call)(ctx, command, c"Ec".as_ptr(), word.as_ptr()) },
            // SAFETY: as above.
            (Some(word), Some(key)) => unsafe {
                (self.api.call)(ctx, command, c"Ecs".as_ptr(), word.as_ptr(), key.raw())
            },
        };
        NonNull::new(reply).map(|reply| CallReply::new(self.api, reply))
    }

    fn node_name(&self) -> Option<&[u8]> {
        // SAFETY: it has no precondition.
        let name = unsafe { (self.api.get_my_cluster_id)() };
        if name.is_null() {
            return None;
        }
        // SAFETY: a node's name has this length, and stays for as long as the server runs.
        Some(unsafe { std::slice::from_raw_parts(name.cast(), NODE_NAME) })
    }
}
