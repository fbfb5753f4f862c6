//! The body of a request: an object whose fields are taken as they stand, and given on with a few of them changed.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// What a prompt's computation needs not, or must not have when one token is asked for.
const NOT_FOR_PREFILL: &[&str] = &[
    "stream_options",
    "min_tokens",
    "n",
    "best_of",
    "use_beam_search",
    "stop",
    "stop_token_ids",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "kv_transfer_params",
];

/// More fields than any request has. Each takes memory beside its bytes.
const FIELDS_MAX: usize = 1_000;

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

    /// Whether it is one prompt that one answer is asked for. An engine that is asked for more computes each by itself.
    pub fn is_one_sequence(&self) -> bool {
        let is_one = |name: &str| matches!(self.get(name), None | Some("null" | "1"));
        let beams = !matches!(self.get("use_beam_search"), None | Some("null" | "false"));
        is_one("n") && is_one("best_of") && !beams && self.prompts() == 1
    }

    /// A list of numbers is one prompt, any other list is one of prompts.
    fn prompts(&self) -> usize {
        let Some(list) = self.get("prompt").and_then(|raw| raw.strip_prefix('[')) else { return 1 };
        if !list.trim_start().starts_with(['"', '[', '{']) {
            return 1;
        }
        let raw = self.get("prompt").unwrap_or_default();
        serde_json::from_str::<Vec<IgnoredAny>>(raw).map_or(usize::MAX, |prompts| prompts.len())
    }

    /// The same request for one token: its prompt is computed, and the answer is of no use. With `kv_transfer_params`
    /// it is computed for another instance: an answer that ends by itself, if only with its first token, would leave
    /// nothing to be fetched, so that it must not.
    pub fn for_prefill(&self, kv_transfer_params: Option<&str>) -> Vec<u8> {
        let mut changed = vec![("max_tokens", "1"), ("stream", "false")];
        // Where both are given this one counts.
        if self.get("max_completion_tokens").is_some() {
            changed.push(("max_completion_tokens", "1"));
        }
        if let Some(params) = kv_transfer_params {
            changed.extend([("ignore_eos", "true"), ("kv_transfer_params", params)]);
        }
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
            if fields.len() == FIELDS_MAX {
                return Err(A::Error::custom(format_args!("it has more than {FIELDS_MAX} fields")));
            }
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
    fn a_prompt_that_is_computed_for_another_instance_has_an_answer_that_goes_on() {
        let fields = Fields::of(br#"{"prompt":"a","stop":["b"],"stop_token_ids":[1],"ignore_eos":false}"#).unwrap();
        let there = value(&fields.for_prefill(Some("{}")));
        let wanted =
            json!({"prompt": "a", "max_tokens": 1, "stream": false, "ignore_eos": true, "kv_transfer_params": {}});
        assert_eq!(there, wanted);
        assert_eq!(value(&fields.for_prefill(None))["ignore_eos"], json!(false), "the pool takes every block");
    }

    #[test]
    fn several_prompts_or_answers_are_no_single_sequence() {
        let is_one = |body: &'static str| Fields::of(body.as_bytes()).unwrap().is_one_sequence();
        for one in [
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#,
            r#"{"prompt":"[\"a\",\"b\"]","n":1,"best_of":null,"use_beam_search":false}"#,
            r#"{"prompt":[1, 2, 3]}"#,
            r#"{"prompt":[]}"#,
            r#"{"prompt":[ "a, b" ]}"#,
            r#"{"prompt":[[1,2]]}"#,
        ] {
            assert!(is_one(one), "{one}");
        }
        for several in [
            r#"{"prompt":["a","b"]}"#,
            r#"{"prompt":[ [1],[2]]}"#,
            r#"{"prompt":"a","n":2}"#,
            r#"{"prompt":"a","n":1.5}"#,
            r#"{"prompt":"a","best_of":3}"#,
            r#"{"prompt":"a","use_beam_search":true}"#,
        ] {
            assert!(!is_one(several), "{several}");
        }
    }

    #[test]
    fn fields_without_end_are_refused_before_they_take_memory() {
        let with = |fields: usize| format!("{{{}}}", vec![r#""":0"#; fields].join(","));
        assert!(Fields::of(with(FIELDS_MAX).as_bytes()).is_ok());
        let error = Fields::of(with(FIELDS_MAX + 1).as_bytes()).unwrap_err().to_string();
        assert!(error.contains("more than 1000 fields"), "{error}");
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
