//! What several rounds of one measurement come to.

/// The median of some samples, and between which values their middle half lies.
#[derive(Clone, Copy)]
pub(crate) struct Summary {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Summary {
    pub(crate) fn of(samples: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = samples.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Self {
            low: quantile(&sorted, 0.25),
            median: quantile(&sorted, 0.5),
            high: quantile(&sorted, 0.75),
        }
    }
}

/// The sample below which so large a part of them lies. They are sorted, and there is one at least.
pub(crate) fn quantile(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len() - 1;
    sorted[(last as f64 * part).round() as usize]
}
