//! What a failure of the data plane is to a store's caller.

use mooncake_memory::CopyError;
use mooncake_segment::{LinkError, TransferError};

use crate::error::{Cause, StoreError};

pub(crate) fn is_no_staging(error: &StoreError) -> bool {
    matches!(error.cause(), Cause::Device(CopyError::NoStaging { .. }))
}

pub(crate) fn link_error(error: &LinkError) -> StoreError {
    match error {
        LinkError::Closed => Cause::Closed.into(),
        LinkError::Forked => Cause::Forked.into(),
        LinkError::Interrupted => Cause::Interrupted.into(),
        short @ LinkError::OutOfDescriptors { .. } => Cause::OutOfDescriptors(short.to_string()).into(),
        other => Cause::Transfer(other.to_string()).into(),
    }
}

pub(crate) fn transfer_error(error: TransferError) -> StoreError {
    match error {
        short if short.is_short_of_descriptors() => out_of_descriptors(&short),
        TransferError::Copy(error @ (CopyError::Fault { .. } | CopyError::Unchecked { .. })) => Cause::Fault(error),
        TransferError::Copy(CopyError::Device(error)) if error.is_wrong_range() => Cause::Fault(error.into()),
        TransferError::Copy(error @ (CopyError::Device(_) | CopyError::NoStaging { .. })) => Cause::Device(error),
        TransferError::CallerMemory { .. } => Cause::InvalidParams(error.to_string()),
        TransferError::Timeout { .. } => Cause::TransferTimeout(error.to_string()),
        TransferError::Checksum { .. } => Cause::Checksum(format!(
            "{error}: its memory was damaged, or the buffer that it was put from was changed during the put"
        )),
        TransferError::Interrupted => Cause::Interrupted,
        TransferError::Forked => Cause::Forked,
        other => Cause::Transfer(other.to_string()),
    }
    .into()
}

/// What a failure is that says so.
pub(crate) fn out_of_descriptors(error: &dyn std::fmt::Display) -> Cause {
    let limit = mooncake_os::descriptor_limit();
    Cause::OutOfDescriptors(format!(
        "{error}: no descriptor is left of the {limit} that this process may have; raise its limit of open files \
         (`ulimit -n`, LimitNOFILE=)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_call_that_its_caller_ends_before_there_is_a_link_is_interrupted_and_not_tried_elsewhere() {
        let error = link_error(&LinkError::Interrupted);
        assert!(error.kind() == ErrorKind::Interrupted && error.is_callers(), "{error}");
        let late = link_error(&LinkError::Timeout { segment: "s".into() });
        assert!(late.kind() == ErrorKind::Transfer && !late.is_callers(), "{late}");
    }
}
