//! The body of a request: an object whose fields are taken as they stand, and given on with a few of them changed.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// What a prompt's computation needs not, or must not have when one token is asked for.
const NOT_FOR_PREFILL: &[&str] = &[
    "stream_options",
    "min_tokens",
    "n",
    "best_of",
    "use_beam_search",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "kv_transfer_params",
];

/// The fields of a JSON object, in their order.
#[derive(Debug)]
pub(crate) struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Fields<'a> {
    /// Reads a body. The error says where it is no JSON object.
    pub fn of(body: &'a [u8]) -> Result<Fields<'a>, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_slice(body);
        let fields = (&mut reader).deserialize_map(OfObject)?;
        reader.end()?;
        Ok(fields)
    }

    /// A field as it stands; the last one of a name counts.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.0.iter().rev().find(|(other, _)| other == name).map(|(_, value)| value.get())
    }

    /// What of the request has a part in the prompt's KV cache beside the prompt.
    pub fn circumstances(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        ["model", "tools", "cache_salt", "chat_template"]
            .iter()
            .map(|name| self.get(name).unwrap_or_default().as_bytes())
    }

    /// What the prompt is, such that equal beginnings have equal bytes.
    pub fn prompt(&self) -> &'a [u8] {
        let raw = self.get("prompt").or_else(|| self.get("messages")).unwrap_or_default();
        // The closing signs of one prompt stand where a longer one goes on.
        raw.trim_end_matches(['"', ']', '}']).as_bytes()
    }

    /// The same request for one token: its prompt is computed, and the answer is of no use.
    pub fn for_prefill(&self, kv_transfer_params: Option<&str>) -> Vec<u8> {
        let mut changed = vec![("max_tokens", "1"), ("stream", "false")];
        // Where both are given this one counts.
        if self.get("max_completion_tokens").is_some() {
            changed.push(("max_completion_tokens", "1"));
        }
        changed.extend(kv_transfer_params.map(|params| ("kv_transfer_params", params)));
        self.with(&changed, NOT_FOR_PREFILL)
    }

    /// The same request, with what the decode instance needs to fetch the KV cache.
    pub fn for_decode(&self, kv_transfer_params: &str) -> Vec<u8> {
        self.with(&[("kv_transfer_params", kv_transfer_params)], &[])
    }

    fn with(&self, changed: &[(&str, &str)], without: &[&str]) -> Vec<u8> {
        let stays = |name: &str| !without.contains(&name) && !changed.iter().any(|(other, _)| *other == name);
        let kept = self.0.iter().filter(|(name, _)| stays(name)).map(|(name, value)| (&**name, value.get()));
        let mut out = vec![b'{'];
        for (name, value) in kept.chain(changed.iter().copied()) {
            if out.len() > 1 {
                out.push(b',');
            }
            serde_json::to_writer(&mut out, name).expect("a string is JSON");
            out.push(b':');
            out.extend_from_slice(value.as_bytes());
        }
        out.push(b'}');
        out
    }
}

struct OfObject;

impl<'de> Visitor<'de> for OfObject {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Vec::new();
        while let Some((Name(name), value)) = map.next_entry()? {
            fields.push((name, value));
        }
        Ok(Fields(fields))
    }
}

/// A field's name, borrowed where it has no escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> serde::Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name<'de>, D::Error> {
        struct OfName;
        impl<'de> Visitor<'de> for OfName {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field's name")
            }
            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(name.into()))
            }
            fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(name.to_owned().into()))
            }
        }
        deserializer.deserialize_str(OfName)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn value(body: &[u8]) -> Value {
        serde_json::from_slice(body).unwrap()
    }

    #[test]
    fn a_prefill_request_asks_for_one_token_and_keeps_the_prompt_as_it_stands() {
        let body = r#" {"model":"m","messages":[{"role":"user","content":"a\u00e9 \" ]"}],"max_tokens":500,
            "max_completion_tokens":400,"stream":true,"stream_options":{"include_usage":true},"n":3,"min_tokens":7,
            "temperature":0.10000000000000001,"seed":18446744073709551615} "#;
        let fields = Fields::of(body.as_bytes()).unwrap();
        let prefill = fields.for_prefill(Some(r#"{"do_remote_decode":true}"#));
        let messages = r#""messages":[{"role":"user","content":"a\u00e9 \" ]"}]"#;
        let text = std::str::from_utf8(&prefill).unwrap();
        assert!(
            text.contains(messages) && text.contains("0.10000000000000001") && text.contains("18446744073709551615")
        );
        let mut read = value(&prefill);
        assert_eq!(read["kv_transfer_params"].take(), json!({"do_remote_decode": true}));
        assert_eq!((&read["max_tokens"], &read["max_completion_tokens"]), (&json!(1), &json!(1)));
        assert_eq!(read["stream"], json!(false));
        assert!(["stream_options", "n", "min_tokens"].iter().all(|name| read.get(name).is_none()));
    }

    #[test]
    fn a_decode_request_is_the_caller_s_own() {
        let fields = Fields::of(br#"{"prompt":[1,2,3],"stream":false,"kv_transfer_params":{"x":1}}"#).unwrap();
        let decode = value(&fields.for_decode(r#"{"y":2}"#));
        assert_eq!(decode, json!({"prompt": [1, 2, 3], "stream": false, "kv_transfer_params": {"y": 2}}));
        assert!(value(&Fields::of(b"{}").unwrap().for_prefill(None))["max_tokens"] == json!(1));
    }

    #[test]
    fn prompts_that_begin_alike_have_bytes_that_begin_alike() {
        let prompt = |body: &'static str| Fields::of(body.as_bytes()).unwrap().prompt();
        let short = prompt(r#"{"messages":[{"role":"user","content":"hello"}]}"#);
        assert!(prompt(r#"{"messages":[{"role":"user","content":"hello"},{"role":"assistant"}]}"#).starts_with(short));
        assert!(prompt(r#"{"prompt":[1,2,3]}"#).starts_with(prompt(r#"{"prompt":[1,2]}"#)));
        assert!(prompt(r#"{"prompt":"abc"}"#).starts_with(prompt(r#"{"prompt":"ab"}"#)));
        assert_eq!(prompt("{}"), b"");
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        for body in ["", "null", "[]", "{", r#"{"a":1}x"#, r#"{"a":1,}"#, r#"{"a":01}"#, "{\"a\":\"\n\"}", "\u{feff}{}"]
        {
            assert!(Fields::of(body.as_bytes()).is_err(), "{body:?}");
        }
        let last = Fields::of(br#"{"stream":true,"str\u0065am":false}"#).unwrap();
        assert_eq!(last.get("stream"), Some("false"), "the last one of a name counts, however it is written");
    }
}
