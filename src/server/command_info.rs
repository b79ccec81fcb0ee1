use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use redis_module::raw;
use redis_module::raw::{
    RedisModuleCommandArg, RedisModuleCommandHistoryEntry, RedisModuleCommandInfo, RedisModuleCommandInfoVersion,
    RedisModuleCommandKeySpec,
};

/// What the server is told of a command: what it answers in `COMMAND INFO`, `COMMAND DOCS` and `COMMAND GETKEYS`, and
/// by what it checks arity, routes in a cluster and enforces ACL key patterns.
pub(crate) struct CommandSpec {
    pub(crate) name: &'static CStr,
    /// The server's command flags, space-separated. `getkeys-api` for a command with a counter key.
    pub(crate) flags: &'static CStr,
    /// The number of arguments, the name included; -N for N or more.
    pub(crate) arity: c_int,
    /// The built-in ACL categories to which it belongs, where the server has categories for modules' commands.
    pub(crate) categories: &'static str,
    pub(crate) summary: &'static CStr,
    pub(crate) complexity: &'static CStr,
    /// What clients and proxies may want to know of its replies.
    pub(crate) tips: Option<&'static CStr>,
    /// What it does to the lock's key, which is the first argument of each command.
    pub(crate) key: KeyAccess,
    /// Where the search for the keyword `COUNTER` starts, in commands that can have a counter key.
    pub(crate) counter_from: Option<c_int>,
    pub(crate) arguments: &'static [ArgumentSpec],
}

/// What a command does to a key, as key specifications say it.
#[derive(Clone, Copy)]
pub(crate) enum KeyAccess {
    /// It tells something of the value, without giving it away.
    Inspect,
    /// It gives the value away.
    Read,
    /// It may change the value or the TTL.
    Update,
    /// It may delete the key.
    Delete,
    /// It changes the value and gives it away.
    UpdateAndAccess,
}

impl KeyAccess {
    /// The flags of a key specification. At most one of insert, update and delete: the server refuses the whole
    /// description otherwise.
    pub(super) const fn flags(self) -> c_int {
        const RO: c_int = 1;
        const RW: c_int = 1 << 1;
        const ACCESS: c_int = 1 << 4;
        const UPDATE: c_int = 1 << 5;
        const DELETE: c_int = 1 << 7;
        match self {
            Self::Inspect => RO,
            Self::Read => RO | ACCESS,
            Self::Update => RW | UPDATE,
            Self::Delete => RW | DELETE,
            Self::UpdateAndAccess => RW | ACCESS | UPDATE,
        }
    }
}

/// One argument in a command's documentation.
pub(crate) struct ArgumentSpec {
    pub(crate) name: &'static CStr,
    pub(crate) kind: ArgumentKind,
    /// The word that introduces it.
    pub(crate) token: Option<&'static CStr>,
    pub(crate) optional: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum ArgumentKind {
    /// A key, with the index of its key specification.
    Key(c_int),
    String,
    Integer,
    /// A word, and nothing else.
    Word,
    /// One of several.
    OneOf(&'static [ArgumentSpec]),
}

impl ArgumentSpec {
    /// An argument that is always there.
    pub(crate) const fn fixed(name: &'static CStr, kind: ArgumentKind) -> Self {
        Self {
            name,
            kind,
            token: None,
            optional: false,
        }
    }

    /// An argument behind a word.
    pub(crate) const fn after(token: &'static CStr, name: &'static CStr, kind: ArgumentKind) -> Self {
        Self {
            name,
            kind,
            token: Some(token),
            optional: false,
        }
    }

    /// A word that stands for itself.
    pub(crate) const fn word(token: &'static CStr, name: &'static CStr) -> Self {
        Self::after(token, name, ArgumentKind::Word)
    }

    /// The same, left out at will.
    pub(crate) const fn optional(self) -> Self {
        Self { optional: true, ..self }
    }
}

static VERSION: RedisModuleCommandInfoVersion = RedisModuleCommandInfoVersion {
    version: 1,
    sizeof_historyentry: size_of::<RedisModuleCommandHistoryEntry>(),
    sizeof_keyspec: size_of::<RedisModuleCommandKeySpec>(),
    sizeof_arg: size_of::<RedisModuleCommandArg>(),
};

/// The version of the module in which all its commands appeared.
const SINCE: &CStr = c"0.1.0";

impl CommandSpec {
    /// What a command does to its counter key: what `INCR` does.
    pub(super) const COUNTER_ACCESS: KeyAccess = KeyAccess::UpdateAndAccess;

    /// Lends the description in the server's form.
    pub(super) fn with_raw<R>(&self, lend: impl FnOnce(*const RedisModuleCommandInfo) -> R) -> R {
        let mut keys = vec![key_at_first_position(self.key)];
        keys.extend(
            self.counter_from
                .map(|start| key_behind(c"COUNTER", start, Self::COUNTER_ACCESS)),
        );
        keys.push(END_OF_KEYS);
        let mut arguments = RawArguments::new(self.arguments);
        let info = RedisModuleCommandInfo {
            version: &raw const VERSION,
            summary: self.summary.as_ptr(),
            complexity: self.complexity.as_ptr(),
            since: SINCE.as_ptr(),
            history: ptr::null_mut(),
            tips: self.tips.map_or(ptr::null(), CStr::as_ptr),
            arity: self.arity,
            key_specs: keys.as_mut_ptr(),
            args: arguments.list.as_mut_ptr(),
        };
        lend(&raw const info)
    }
}

const END_OF_KEYS: RedisModuleCommandKeySpec = RedisModuleCommandKeySpec {
    notes: ptr::null(),
    flags: 0,
    begin_search_type: raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INVALID,
    bs: raw::RedisModuleCommandKeySpec__bindgen_ty_1 {
        index: raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos: 0 },
    },
    find_keys_type: raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE,
    fk: raw::RedisModuleCommandKeySpec__bindgen_ty_2 {
        range: raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 {
            lastkey: 0,
            keystep: 1,
            limit: 0,
        },
    },
};

fn key_at_first_position(access: KeyAccess) -> RedisModuleCommandKeySpec {
    RedisModuleCommandKeySpec {
        flags: u64::from(access.flags().unsigned_abs()),
        begin_search_type: raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX,
        bs: raw::RedisModuleCommandKeySpec__bindgen_ty_1 {
            index: raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos: 1 },
        },
        ..END_OF_KEYS
    }
}

fn key_behind(keyword: &'static CStr, startfrom: c_int, access: KeyAccess) -> RedisModuleCommandKeySpec {
    RedisModuleCommandKeySpec {
        flags: u64::from(access.flags().unsigned_abs()),
        begin_search_type: raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_KEYWORD,
        bs: raw::RedisModuleCommandKeySpec__bindgen_ty_1 {
            keyword: raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_2 {
                keyword: keyword.as_ptr(),
                startfrom,
            },
        },
        ..END_OF_KEYS
    }
}

/// Arguments in the server's form, with those that they contain.
struct RawArguments {
    list: Vec<RedisModuleCommandArg>,
    /// Kept because `list` points into them.
    _inner: Vec<RawArguments>,
}

impl RawArguments {
    fn new(specs: &[ArgumentSpec]) -> Self {
        let mut inner = Vec::new();
        let mut list = Vec::new();
        for spec in specs {
            let mut subargs = ptr::null_mut();
            if let ArgumentKind::OneOf(choices) = spec.kind {
                let mut choices = Self::new(choices);
                subargs = choices.list.as_mut_ptr();
                inner.push(choices);
            }
            list.push(RedisModuleCommandArg {
                name: spec.name.as_ptr(),
                type_: spec.kind.raw(),
                key_spec_index: if let ArgumentKind::Key(index) = spec.kind {
                    index
                } else {
                    -1
                },
                token: spec.token.map_or(ptr::null(), CStr::as_ptr),
                flags: if spec.optional { OPTIONAL } else { 0 },
                subargs,
                ..END_OF_ARGUMENTS
            });
        }
        list.push(END_OF_ARGUMENTS);
        Self { list, _inner: inner }
    }
}

const OPTIONAL: c_int = 1;

const NONE: *const c_char = ptr::null();

const END_OF_ARGUMENTS: RedisModuleCommandArg = RedisModuleCommandArg {
    name: NONE,
    type_: 0,
    key_spec_index: -1,
    token: NONE,
    summary: NONE,
    since: NONE,
    flags: 0,
    deprecated_since: NONE,
    subargs: ptr::null_mut(),
    display_text: NONE,
};

impl ArgumentKind {
    const fn raw(self) -> raw::RedisModuleCommandArgType {
        match self {
            Self::Key(_) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
            Self::String => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
            Self::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
            Self::Word => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
            Self::OneOf(_) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
        }
    }
}
