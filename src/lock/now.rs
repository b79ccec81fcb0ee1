/// The time of day at which a command runs, as the server sees it: the same moment for all that one command does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    microseconds: i64,
}

impl Now {
    /// From microseconds since the Unix epoch.
    pub(crate) const fn from_microseconds(microseconds: i64) -> Self {
        Self { microseconds }
    }

    /// Microseconds since the Unix epoch, the unit of fences.
    pub(crate) const fn microseconds(self) -> i64 {
        self.microseconds
    }

    /// Milliseconds since the Unix epoch, the unit of deadlines.
    pub(crate) const fn milliseconds(self) -> i64 {
        self.microseconds.div_euclid(1000)
    }
}
