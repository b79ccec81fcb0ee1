//! The functions of the server that the module calls.

use std::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use redis_module::raw;
use redis_module::raw::{
    RedisModuleBlockedClient as BlockedClient, RedisModuleCallReply as CallReply, RedisModuleCommand as Command,
    RedisModuleCommandInfo as CommandInfo, RedisModuleCtx as Ctx, RedisModuleEvent as Event, RedisModuleKey as Key,
    RedisModuleString as Str,
};

/// Declares [`Api`]: a field for each function, and how to find them all.
macro_rules! api {
    (
        required: { $($field:ident = $symbol:ident: fn($($type:ty),* $(; $variadic:tt)?) $(-> $output:ty)?;)* }
        optional: { $($optional:ident = $optional_symbol:ident: fn($($optional_type:ty),*) -> $optional_output:ty;)* }
    ) => {
        /// The server's functions, found once at load, so that no command has to ask whether the server has them.
        pub(super) struct Api {
            $(pub(super) $field: unsafe extern "C" fn($($type),* $(, $variadic)?) $(-> $output)?,)*
            $(pub(super) $optional: Option<unsafe extern "C" fn($($optional_type),*) -> $optional_output>,)*
        }

        impl Api {
            /// Reads what the server has filled in for the module.
            ///
            /// # Errors
            ///
            /// The name of the first function that the server lacks and the module needs.
            fn find() -> Result<Self, &'static CStr> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the server wrote the pointer in `Export_RedisModule_Init`, before the first call to
                        // this function, and nobody writes it again.
                        let found = unsafe { raw::$symbol };
                        match found {
                            Some(function) => function,
                            None => return Err(const {
                                match CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
                                    Ok(name) => name,
                                    Err(_) => c"",
                                }
                            }),
                        }
                    },)*
                    // SAFETY: as above.
                    $($optional: unsafe { raw::$optional_symbol },)*
                })
            }
        }
    };
}

api! {
    required: {
        avoid_replica_traffic = RedisModule_AvoidReplicaTraffic: fn() -> c_int;
        block_client = RedisModule_BlockClient: fn(
            *mut Ctx, raw::RedisModuleCmdFunc, raw::RedisModuleCmdFunc,
            Option<unsafe extern "C" fn(*mut Ctx, *mut c_void)>, c_longlong
        ) -> *mut BlockedClient;
        call = RedisModule_Call: fn(*mut Ctx, *const c_char, *const c_char; ...) -> *mut CallReply;
        call_reply_array_element = RedisModule_CallReplyArrayElement: fn(*mut CallReply, usize) -> *mut CallReply;
        call_reply_integer = RedisModule_CallReplyInteger: fn(*mut CallReply) -> c_longlong;
        call_reply_string_ptr = RedisModule_CallReplyStringPtr: fn(*mut CallReply, *mut usize) -> *const c_char;
        call_reply_type = RedisModule_CallReplyType: fn(*mut CallReply) -> c_int;
        close_key = RedisModule_CloseKey: fn(*mut Key);
        create_command = RedisModule_CreateCommand: fn(
            *mut Ctx, *const c_char, raw::RedisModuleCmdFunc, *const c_char, c_int, c_int, c_int
        ) -> c_int;
        create_string = RedisModule_CreateString: fn(*mut Ctx, *const c_char, usize) -> *mut Str;
        create_timer = RedisModule_CreateTimer: fn(
            *mut Ctx, raw::mstime_t, raw::RedisModuleTimerProc, *mut c_void
        ) -> raw::RedisModuleTimerID;
        delete_key = RedisModule_DeleteKey: fn(*mut Key) -> c_int;
        event_loop_add_one_shot = RedisModule_EventLoopAddOneShot: fn(
            raw::RedisModuleEventLoopOneShotFunc, *mut c_void
        ) -> c_int;
        free = RedisModule_Free: fn(*mut c_void);
        free_call_reply = RedisModule_FreeCallReply: fn(*mut CallReply);
        free_string = RedisModule_FreeString: fn(*mut Ctx, *mut Str);
        get_abs_expire = RedisModule_GetAbsExpire: fn(*mut Key) -> raw::mstime_t;
        get_blocked_client_handle = RedisModule_GetBlockedClientHandle: fn(*mut Ctx) -> *mut BlockedClient;
        get_blocked_client_private_data = RedisModule_GetBlockedClientPrivateData: fn(*mut Ctx) -> *mut c_void;
        get_client_info_by_id = RedisModule_GetClientInfoById: fn(*mut c_void, u64) -> c_int;
        get_client_id = RedisModule_GetClientId: fn(*mut Ctx) -> c_ulonglong;
        get_command = RedisModule_GetCommand: fn(*mut Ctx, *const c_char) -> *mut Command;
        get_command_keys = RedisModule_GetCommandKeys: fn(*mut Ctx, *mut *mut Str, c_int, *mut c_int) -> *mut c_int;
        get_context_flags = RedisModule_GetContextFlags: fn(*mut Ctx) -> c_int;
        get_my_cluster_id = RedisModule_GetMyClusterID: fn() -> *const c_char;
        get_selected_db = RedisModule_GetSelectedDb: fn(*mut Ctx) -> c_int;
        info_add_field_long_long = RedisModule_InfoAddFieldLongLong: fn(
            *mut raw::RedisModuleInfoCtx, *const c_char, c_longlong
        ) -> c_int;
        info_add_section = RedisModule_InfoAddSection: fn(*mut raw::RedisModuleInfoCtx, *const c_char) -> c_int;
        is_keys_position_request = RedisModule_IsKeysPositionRequest: fn(*mut Ctx) -> c_int;
        key_at_pos_with_flags = RedisModule_KeyAtPosWithFlags: fn(*mut Ctx, c_int, c_int);
        key_type = RedisModule_KeyType: fn(*mut Key) -> c_int;
        load_configs = RedisModule_LoadConfigs: fn(*mut Ctx) -> c_int;
        notify_keyspace_event = RedisModule_NotifyKeyspaceEvent: fn(*mut Ctx, c_int, *const c_char, *mut Str) -> c_int;
        open_key = RedisModule_OpenKey: fn(*mut Ctx, *mut Str, c_int) -> *mut Key;
        register_info_func = RedisModule_RegisterInfoFunc: fn(*mut Ctx, raw::RedisModuleInfoFunc) -> c_int;
        register_numeric_config = RedisModule_RegisterNumericConfig: fn(
            *mut Ctx, *const c_char, c_longlong, c_uint, c_longlong, c_longlong,
            raw::RedisModuleConfigGetNumericFunc, raw::RedisModuleConfigSetNumericFunc, raw::RedisModuleConfigApplyFunc,
            *mut c_void
        ) -> c_int;
        replicate = RedisModule_Replicate: fn(*mut Ctx, *const c_char, *const c_char; ...) -> c_int;
        reply_with_array = RedisModule_ReplyWithArray: fn(*mut Ctx, c_long) -> c_int;
        reply_with_c_string = RedisModule_ReplyWithCString: fn(*mut Ctx, *const c_char) -> c_int;
        reply_with_error = RedisModule_ReplyWithError: fn(*mut Ctx, *const c_char) -> c_int;
        reply_with_long_long = RedisModule_ReplyWithLongLong: fn(*mut Ctx, c_longlong) -> c_int;
        reply_with_map = RedisModule_ReplyWithMap: fn(*mut Ctx, c_long) -> c_int;
        reply_with_null = RedisModule_ReplyWithNull: fn(*mut Ctx) -> c_int;
        reply_with_string = RedisModule_ReplyWithString: fn(*mut Ctx, *mut Str) -> c_int;
        select_db = RedisModule_SelectDb: fn(*mut Ctx, c_int) -> c_int;
        set_abs_expire = RedisModule_SetAbsExpire: fn(*mut Key, raw::mstime_t) -> c_int;
        set_command_info = RedisModule_SetCommandInfo: fn(*mut Command, *const CommandInfo) -> c_int;
        set_disconnect_callback = RedisModule_SetDisconnectCallback: fn(
            *mut BlockedClient, raw::RedisModuleDisconnectFunc
        );
        set_module_options = RedisModule_SetModuleOptions: fn(*mut Ctx, c_int);
        stop_timer = RedisModule_StopTimer: fn(*mut Ctx, raw::RedisModuleTimerID, *mut *mut c_void) -> c_int;
        string_dma = RedisModule_StringDMA: fn(*mut Key, *mut usize, c_int) -> *mut c_char;
        string_ptr_len = RedisModule_StringPtrLen: fn(*const Str, *mut usize) -> *const c_char;
        string_set = RedisModule_StringSet: fn(*mut Key, *mut Str) -> c_int;
        subscribe_to_keyspace_events = RedisModule_SubscribeToKeyspaceEvents: fn(
            *mut Ctx, c_int, raw::RedisModuleNotificationFunc
        ) -> c_int;
        subscribe_to_server_event = RedisModule_SubscribeToServerEvent: fn(
            *mut Ctx, Event, raw::RedisModuleEventCallback
        ) -> c_int;
        unblock_client = RedisModule_UnblockClient: fn(*mut BlockedClient, *mut c_void) -> c_int;
    }
    optional: {
        // Redis 7.4 and Valkey.
        add_acl_category = RedisModule_AddACLCategory: fn(*mut Ctx, *const c_char) -> c_int;
        // Redis 7.2 and Valkey.
        cached_microseconds = RedisModule_CachedMicroseconds: fn() -> raw::ustime_t;
        // Redis 7.2 and Valkey.
        set_command_acl_categories = RedisModule_SetCommandACLCategories: fn(*mut Command, *const c_char) -> c_int;
    }
}

static API: OnceLock<Api> = OnceLock::new();

/// Finds the server's functions: the first thing that a load does.
///
/// # Errors
///
/// The name of a function that the server lacks.
pub(super) fn find_api() -> Result<&'static Api, &'static CStr> {
    let found = Api::find()?;
    Ok(API.get_or_init(|| found))
}

/// The server's functions, once the module has been loaded.
pub(super) fn api() -> Option<&'static Api> {
    API.get()
}

/// The status with which the server's functions say that they did it.
pub(super) const OK: c_int = 0;
/// The status with which they say that they did not.
pub(super) const ERR: c_int = 1;
