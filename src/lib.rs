//! redis-lock
