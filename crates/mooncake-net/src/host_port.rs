//! `host:port`, as addresses are written.

/// `host:port`, with brackets where the host needs them.
pub fn join_host_port(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_with_colons_is_put_in_brackets() {
        assert_eq!((join_host_port("::1", 5), join_host_port("h", 5)), ("[::1]:5".to_owned(), "h:5".to_owned()));
    }
}
