//! The commands, a file each. Each has the same three steps: parse (which makes every check that needs no key), act,
//! reply.

mod acquire;
mod extend;
mod fence;
mod info;
mod release;

pub(crate) use acquire::Acquire;
pub(crate) use extend::Extend;
pub(crate) use fence::Fence;
pub(crate) use info::Info;
pub(crate) use release::Release;
