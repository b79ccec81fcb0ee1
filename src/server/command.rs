use std::ffi::{CStr, CString, c_int};

use redis_module::raw::{RedisModuleCmdFunc, RedisModuleCtx, RedisModuleString};

use super::api::{Api, ERR, OK};
use super::boundary::boundary;
use super::{Call, CommandSpec, Failure, Reply};
use crate::MODULE;

/// A command of the module's.
pub(crate) trait Command {
    /// What the server is told of it at load.
    const SPEC: CommandSpec;

    /// The position of the counter key, in commands that can have one.
    fn counter_position(_call: &Call<'_>) -> Option<usize> {
        None
    }

    /// Carries it out.
    fn run<'call>(call: &'call Call<'call>) -> Result<Reply<'call>, Failure>;
}

/// A command as it is registered: what it is, and how it is entered.
pub(crate) struct Registration {
    spec: &'static CommandSpec,
    entry: RedisModuleCmdFunc,
}

impl Registration {
    pub(crate) const fn of<C: Command>() -> Self {
        Self {
            spec: &C::SPEC,
            entry: Some(entry::<C>),
        }
    }

    /// Makes the command known to the server, at load.
    pub(super) fn register(&self, api: &Api, ctx: *mut RedisModuleCtx) -> Result<(), &'static CStr> {
        let name = self.spec.name.as_ptr();
        // SAFETY: `ctx` is the context of the load, the strings are static, and the entry has a command's signature.
        let status = unsafe { (api.create_command)(ctx, name, self.entry, self.spec.flags.as_ptr(), 1, 1, 1) };
        if status != OK {
            return Err(c"cannot register a command: another module may have one of that name");
        }
        // SAFETY: as above.
        let command = unsafe { (api.get_command)(ctx, name) };
        self.spec.with_raw(|info| {
            // SAFETY: the command is the one just created; `info` and all that it points to live through the call,
            // which copies it.
            match unsafe { (api.set_command_info)(command, info) } {
                OK => Ok(()),
                _ => Err(c"the server does not take the description of a command"),
            }
        })?;
        let Some(set_categories) = api.set_command_acl_categories else {
            return Ok(());
        };
        // Redis 7.2 has categories for the commands of modules, but none of a module's own.
        let own = if api.add_acl_category.is_some() { " lock" } else { "" };
        let categories = CString::new([self.spec.categories, own].concat()).unwrap_or_default();
        // SAFETY: the command is the one just created, and the server copies the text.
        match unsafe { set_categories(command, categories.as_ptr()) } {
            OK => Ok(()),
            _ => Err(c"the server does not take the ACL categories of a command"),
        }
    }
}

/// Makes the ACL category of the module's commands, which is called as the module is. Where it fails, the category is
/// there already: a server keeps it when it unloads the module.
pub(super) fn add_acl_category(api: &Api, ctx: *mut RedisModuleCtx) {
    if let Some(add) = api.add_acl_category {
        // SAFETY: `ctx` is the context of the load, and the name is static.
        unsafe { add(ctx, MODULE.name.as_ptr()) };
    }
}

/// Where the server enters a command: to have it carried out, or to be told where its keys are.
extern "C" fn entry<C: Command>(ctx: *mut RedisModuleCtx, argv: *mut *mut RedisModuleString, argc: c_int) -> c_int {
    // SAFETY: the server keeps the context, the vector and its strings alive and unchanged until this function returns.
    let Some(call) = (unsafe { Call::new(ctx, argv, argc) }) else {
        return ERR;
    };
    if call.asks_for_keys() {
        let counter = boundary(|| C::counter_position(&call));
        call.report_key(1, C::SPEC.key.flags());
        if let Ok(Some(position)) = counter {
            call.report_key(position, CommandSpec::COUNTER_ACCESS.flags());
        }
        return OK;
    }
    match boundary(|| C::run(&call)) {
        Ok(Ok(reply)) => call.reply(&reply),
        Ok(Err(failure)) => call.reply_failure(&failure),
        Err(error) => call.reply_failure(&error.into()),
    }
    OK
}
