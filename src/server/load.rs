use std::ffi::{CStr, CString, c_int};

use redis_module::raw::{Export_RedisModule_Init, REDISMODULE_CTX_FLAGS_EVICT, RedisModuleCtx, RedisModuleString};

use super::api::{Api, ERR, OK, find_api};
use super::boundary::boundary;
use super::command::add_acl_category;
use super::constant::PXAT;
use super::info::answer_info;
use super::key::PLAIN_COMMANDS;
use super::string::OwnedString;
use super::{Registration, Setting, clock, listen, log, module_options, role, timer};
use crate::error::Error;
use crate::{HOOKS, MODULE};

/// What the server learns of the module when it loads it.
pub(crate) struct Module {
    /// Its name, which is also the prefix of its settings.
    pub(crate) name: &'static CStr,
    pub(crate) settings: &'static [&'static Setting],
    pub(crate) commands: &'static [Registration],
}

/// The package's version, as `MODULE LIST` shows it: 10203 for 1.2.3.
const VERSION: c_int = number(env!("CARGO_PKG_VERSION_MAJOR"))
    .saturating_mul(100)
    .saturating_add(number(env!("CARGO_PKG_VERSION_MINOR")))
    .saturating_mul(100)
    .saturating_add(number(env!("CARGO_PKG_VERSION_PATCH")));

const fn number(text: &str) -> c_int {
    match c_int::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => 0,
    }
}

/// The only version of the module API that there is.
const API_VERSION: c_int = 1;

/// Where the server enters the module to load it.
///
/// # Safety
///
/// The server calls it once, with a context and arguments that live through the call.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name by which the server finds it")]
unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut RedisModuleCtx,
    _argv: *mut *mut RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: `ctx` is the context of the load, and the name is static. This comes before anything that allocates: the
    // allocator is the server's, which becomes known here.
    let status = unsafe { Export_RedisModule_Init(ctx, MODULE.name.as_ptr(), VERSION, API_VERSION) };
    if status != OK {
        return ERR;
    }
    let api = match find_api() {
        Ok(api) => api,
        Err(function) => {
            log::warning(
                ctx,
                c"the server is too old: Redis 7.0 or later, or Valkey, is needed. It lacks:",
            );
            log::warning(ctx, function);
            return ERR;
        }
    };
    let loaded = boundary(|| load(api, ctx, argc)).unwrap_or(Err(c"internal error"));
    match loaded {
        Ok(()) => OK,
        Err(reason) => {
            log::warning(ctx, reason);
            ERR
        }
    }
}

/// Where the server enters the module before it unloads it.
///
/// What has been registered with the server it takes back by itself. It refuses by itself, too, while clients are
/// blocked or a timer is set; the module refuses once more, for what it keeps of those who wait is freed here.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name by which the server finds it")]
extern "C" fn RedisModule_OnUnload(_ctx: *mut RedisModuleCtx) -> c_int {
    let unloaded = boundary(|| {
        if !timer::has_jobs() && (HOOKS.unload)() {
            log::stop_reporting_panics();
            PXAT.free()
        } else {
            Err(Error::Internal)
        }
    });
    match unloaded.flatten() {
        Ok(()) => OK,
        Err(_) => ERR,
    }
}

/// # Errors
///
/// Why the module does not load, for the server's log.
fn load(api: &'static Api, ctx: *mut RedisModuleCtx, argc: c_int) -> Result<(), &'static CStr> {
    if argc != 0 {
        return Err(
            c"the module takes no arguments: its settings are lines in redis.conf, such as 'lock.max-ttl 60000'",
        );
    }
    for command in PLAIN_COMMANDS {
        if !is_there(api, ctx, command) {
            return Err(c"SET, DEL, PEXPIREAT or INCR has been renamed: a lock could not be replicated");
        }
    }
    log::report_panics();
    module_options::signal_at_close(api, ctx, false);
    add_acl_category(api, ctx);
    for command in MODULE.commands {
        command.register(api, ctx)?;
    }
    for setting in MODULE.settings {
        setting.register(api, ctx)?;
    }
    // SAFETY: `ctx` is the context of the load, and all settings have been registered.
    if unsafe { (api.load_configs)(ctx) } != OK {
        return Err(c"a setting of the module has a value that it cannot have");
    }
    role::follow(api, ctx)?;
    listen::listen_for_databases(api, ctx)?;
    listen::listen_for_loading(api, ctx)?;
    answer_info(api, ctx)?;
    (HOOKS.loaded)(clock::now(api)).map_err(|_| c"the system has no randomness to give")?;
    PXAT.make(api).map_err(|_| c"internal error")?;
    log::notice(ctx, &CString::new(greeting()).unwrap_or_default());
    // SAFETY: `ctx` is the context of the load.
    let flags = unsafe { (api.get_context_flags)(ctx) };
    if u32::try_from(flags).is_ok_and(|flags| flags & REDISMODULE_CTX_FLAGS_EVICT != 0) {
        log::warning(
            ctx,
            c"maxmemory-policy may evict a lock that is held: set it to noeviction",
        );
    }
    Ok(())
}

/// What the log says of a module that has been loaded: its version, and its settings.
fn greeting() -> String {
    let settings: Vec<_> = MODULE
        .settings
        .iter()
        .map(|setting| format!("{} {}", setting.name().to_string_lossy(), setting.get()))
        .collect();
    format!("redis-lock {}: {}", env!("CARGO_PKG_VERSION"), settings.join(", "))
}

/// Whether the server has a command under this name.
fn is_there(api: &'static Api, ctx: *mut RedisModuleCtx, command: &[&CStr]) -> bool {
    let strings: Vec<_> = command
        .iter()
        .filter_map(|word| OwnedString::new(api, word.to_bytes()))
        .collect();
    let mut argv: Vec<_> = strings.iter().map(|string| string.as_argument().raw()).collect();
    let Ok(argc) = c_int::try_from(argv.len()) else {
        return false;
    };
    let mut count = 0;
    // SAFETY: `argv` holds `argc` strings that live through the call.
    let positions = unsafe { (api.get_command_keys)(ctx, argv.as_mut_ptr(), argc, &raw mut count) };
    let there = !positions.is_null();
    // SAFETY: the server hands over an array of its own allocator, or null, which is ignored.
    unsafe { (api.free)(positions.cast()) };
    there
}
