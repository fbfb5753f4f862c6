//! How many tokens an answer has, as its server reports them at its end.

use serde::Deserialize;

/// Servers say it at the very end; what follows it is shorter than this, in bytes.
const TAIL: usize = 1 << 10;

/// The end of an answer.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    tail: Vec<u8>,
}

/// What it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Tokens {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
}

impl Usage {
    pub fn passed(&mut self, bytes: &[u8]) {
        let kept = (TAIL - bytes.len().min(TAIL)).min(self.tail.len());
        self.tail.drain(..self.tail.len() - kept);
        self.tail.extend_from_slice(&bytes[bytes.len().saturating_sub(TAIL)..]);
    }

    /// None if it does not say: a stream does if the request has `stream_options.include_usage`.
    pub fn tokens(&self) -> Option<Tokens> {
        const NAME: &[u8] = b"\"usage\":";
        let at = self.tail.windows(NAME.len()).rposition(|bytes| bytes == NAME)?;
        serde_json::Deserializer::from_slice(&self.tail[at + NAME.len()..]).into_iter().next()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(pieces: &[&str]) -> Option<(u64, u64)> {
        let mut usage = Usage::default();
        pieces.iter().for_each(|piece| usage.passed(piece.as_bytes()));
        assert!(usage.tail.len() <= TAIL);
        usage.tokens().map(|tokens| (tokens.prompt_tokens, tokens.completion_tokens))
    }

    #[test]
    fn the_last_word_about_tokens_counts_in_whatever_pieces_it_comes() {
        let end = r#""usage":{"prompt_tokens":12,"total_tokens":19,"completion_tokens":7},"kv_transfer_params":null}"#;
        let whole = format!(r#"{{"choices":[{{"text":"{}"}}],{end}"#, "x".repeat(5_000));
        assert_eq!(tokens(&[&whole]), Some((12, 7)));
        let bytes: Vec<String> = whole.chars().map(String::from).collect();
        assert_eq!(tokens(&bytes.iter().map(String::as_str).collect::<Vec<_>>()), Some((12, 7)));
        let last = r#"data: {"choices":[],"usage": {"prompt_tokens":1,"completion_tokens":2}}"#;
        assert_eq!(tokens(&[r#"data: {"usage":null}"#, "\n\n", last, "\n\ndata: [DONE]\n\n"]), Some((1, 2)));
        for silent in ["", "{}", r#""usage":"#, r#""usage":null"#, r#""usage":{"prompt_tok"#, r#""usage":[]"#] {
            assert_eq!(tokens(&[silent]), None, "{silent}");
        }
    }
}
