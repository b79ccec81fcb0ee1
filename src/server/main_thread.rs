use std::cell::RefCell;

use crate::error::Error;

/// A value that belongs to the thread on which the server runs its modules.
///
/// A `RefCell` rather than a `Mutex`: where a call into the server leads back into the module while the value is
/// borrowed, the inner entry gets an error instead of a server that stands still.
pub(crate) struct MainThread<T>(RefCell<T>);

// SAFETY: the server enters a module from one thread at a time (the main thread, or another under the same global
// lock), so two threads never use the value at once; `T: Send` because it need not always be the same thread.
unsafe impl<T: Send> Sync for MainThread<T> {}

impl<T> MainThread<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(RefCell::new(value))
    }

    /// Works on the value. The closure must not call into the server.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] if the value is in use further up the stack.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R, Error> {
        let mut value = self.0.try_borrow_mut().map_err(|_| Error::Internal)?;
        Ok(work(&mut value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_while_the_value_is_in_use_gets_an_error() {
        static VALUE: MainThread<u8> = MainThread::new(1);
        assert_eq!(VALUE.with(|_| VALUE.with(|_| ())), Ok(Err(Error::Internal)));
        assert_eq!(VALUE.with(|value| *value), Ok(1));
    }
}
