//! Checks that name what is wrong.

/// Leaves a check with what is wrong unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($wrong:tt)+) => {
        if !$holds {
            return Err(format!($($wrong)+));
        }
    };
}
pub(crate) use ensure;
