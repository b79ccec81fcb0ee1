use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI64, Ordering};

use redis_module::raw::{REDISMODULE_CONFIG_DEFAULT, RedisModuleCtx, RedisModuleString};

use super::api::{Api, OK};
use super::boundary::boundary;
use crate::HOOKS;

/// An integer in the server's configuration, under the module's name: `lock.NAME`.
pub(crate) struct Setting {
    name: &'static CStr,
    default: i64,
    min: i64,
    max: i64,
    value: AtomicI64,
}

impl Setting {
    /// The server checks the bounds, and sets the default where the configuration says nothing.
    pub(crate) const fn new(name: &'static CStr, default: i64, min: i64, max: i64) -> Self {
        Self {
            name,
            default,
            min,
            max,
            value: AtomicI64::new(default),
        }
    }

    pub(super) const fn name(&self) -> &'static CStr {
        self.name
    }

    pub(crate) fn get(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Makes it known to the server, at load.
    pub(super) fn register(&'static self, api: &Api, ctx: *mut RedisModuleCtx) -> Result<(), &'static CStr> {
        let this: *mut c_void = ptr::from_ref(self).cast_mut().cast();
        // SAFETY: `ctx` is the context of the load; the name is static; the callbacks have the signatures asked for and
        // get back `this`, which is static and is only read through.
        let status = unsafe {
            (api.register_numeric_config)(
                ctx,
                self.name.as_ptr(),
                self.default,
                REDISMODULE_CONFIG_DEFAULT,
                self.min,
                self.max,
                Some(get),
                Some(set),
                Some(applied),
                this,
            )
        };
        match status {
            OK => Ok(()),
            _ => Err(c"cannot register a setting"),
        }
    }
}

/// The server reads a setting.
extern "C" fn get(_name: *const c_char, setting: *mut c_void) -> c_longlong {
    // SAFETY: the server passes what `register` gave it: a `&'static Setting`.
    let setting = unsafe { setting.cast::<Setting>().as_ref() };
    setting.map_or(0, Setting::get)
}

/// The server sets a setting, to a value that it has found within the bounds.
extern "C" fn set(
    _name: *const c_char,
    value: c_longlong,
    setting: *mut c_void,
    _error: *mut *mut RedisModuleString,
) -> c_int {
    // SAFETY: as in `get`.
    if let Some(setting) = unsafe { setting.cast::<Setting>().as_ref() } {
        setting.value.store(value, Ordering::Relaxed);
    }
    OK
}

/// All settings of a command have been set, and none of them will be taken back.
extern "C" fn applied(_ctx: *mut RedisModuleCtx, _setting: *mut c_void, _error: *mut *mut RedisModuleString) -> c_int {
    let _ = boundary(HOOKS.configured);
    OK
}
