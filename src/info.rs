//! What `INFO lock` shows: plain numbers, under names that end up as the names of metrics.

use std::ffi::CString;

use crate::handover;
use crate::journal;
use crate::server::InfoReply;
use crate::state;

/// Writes the sections.
pub(crate) fn show(info: &InfoReply) {
    let Some(statistics) = journal::statistics() else {
        return;
    };
    info.section(c"stats");
    info.field(c"acquired", statistics.acquired);
    info.field(c"reacquired", statistics.reacquired);
    info.field(c"refused", statistics.refused);
    info.field(c"waited", statistics.waited);
    info.field(c"wait_timeouts", statistics.wait_timeouts);
    info.field(c"released", statistics.released);
    info.field(c"release_misses", statistics.release_misses);
    info.field(c"extended", statistics.extended);
    info.field(c"extend_misses", statistics.extend_misses);
    info.field(c"fences_issued", statistics.fences_issued);
    info.field(c"last_fence", state::last_fence().unwrap_or(0));
    info.field(c"sessions_ended", statistics.sessions_ended);

    let (waiters, locks) = handover::waiters().unwrap_or((0, 0));
    info.section(c"waiting");
    info.field(c"waiters", waiters);
    info.field(c"locks_with_waiters", locks);

    info.section(c"wait_time");
    for (bound, count) in statistics.wait_times.up_to() {
        if let Ok(name) = CString::new(format!("wait_ms_le_{bound}")) {
            info.field(&name, count);
        }
    }
    info.field(c"wait_ms_count", statistics.wait_times.count());
    info.field(c"wait_ms_sum", statistics.wait_times.sum());
}
