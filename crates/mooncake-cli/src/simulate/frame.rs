//! Where things stand in the chart of a simulation.

use crate::simulate::report::Report;

/// Of the picture.
pub const WIDTH: f64 = 760.0;
/// The same.
pub const HEIGHT: f64 = 360.0;
/// Where the curves begin.
pub const LEFT: f64 = 56.0;
/// Where they end.
pub const RIGHT: f64 = WIDTH - 34.0;
/// The highest line of the grid.
pub const TOP: f64 = 76.0;
/// The lowest.
pub const BOTTOM: f64 = HEIGHT - 52.0;

/// Shares by which lines of the grid may be apart.
const STEPS: [f64; 8] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2];

/// Lines of the grid above the lowest, at most.
const STEPS_MAX: f64 = 5.0;

/// The most marks below the axis.
const MARKS_MAX: u32 = 9;

/// The scales.
pub struct Frame {
    /// Memory at the left end and at the right one. Between them each doubling takes as much room.
    from: f64,
    to: f64,
    /// Share from one line of the grid to the next.
    step: f64,
    steps: u32,
}

impl Frame {
    /// For all sizes and shares of a report.
    pub fn of(report: &Report) -> Frame {
        let sizes = report.sizes().map(|size| size.bytes as f64);
        let (from, to) = sizes.fold((f64::MAX, 1.0_f64), |(from, to), bytes| (from.min(bytes), to.max(bytes)));
        // One size stands in the middle.
        let (from, to) = if from < to { (from, to) } else { (to / 2.0, to * 2.0) };
        // A little more than what stands highest: what is written above that has room.
        let top = (report.share(report.possible) * 1.05).min(1.0);
        let step = STEPS.into_iter().find(|step| top / step <= STEPS_MAX).unwrap_or(0.2);
        Frame { from, to, step, steps: (top / step).ceil().max(1.0) as u32 }
    }

    /// Where an amount of memory is.
    pub fn across(&self, bytes: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * (bytes / self.from).ln() / (self.to / self.from).ln()
    }

    /// Where a share of the blocks is.
    pub fn up(&self, share: f64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * share / (self.step * f64::from(self.steps))
    }

    /// Shares that have a line.
    pub fn shares(&self) -> impl Iterator<Item = f64> {
        (0..=self.steps).map(|nth| self.step * f64::from(nth))
    }

    /// Amounts of memory that are written below the axis: powers of two, as memory is bought, or where there are no two
    /// of them the ends.
    pub fn marks(&self) -> Vec<f64> {
        let (first, last) = (self.from.log2().ceil() as i32, self.to.log2().floor() as i32);
        if first >= last {
            return vec![self.from, self.to];
        }
        let step = last.abs_diff(first) / MARKS_MAX + 1;
        (first..=last).step_by(step as usize).map(|power| 2_f64.powi(power)).collect()
    }
}
