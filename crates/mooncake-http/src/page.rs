//! What pages for people have in common: a look, a script, and what they may do. A page is one answer that needs no
//! other: it brings its own title, body and script, and names the place where the shared head comes in.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use crate::reply::with_type;

/// Stands in a page where its head begins: the shared one comes there.
const HEAD_HERE: &str = "<!--head-->";
const HEAD: &str = include_str!("page/head.html");
/// And where its body tells what is wrong: this begins `main`.
const NOTICES_HERE: &str = "<!--notices-->";
const NOTICES: &str = include_str!("page/notices.html");
const LOOK_HERE: &str = "/*look*/";
const LOOK: &str = include_str!("page/look.css");
const SCRIPT_HERE: &str = "/*script*/";
const SCRIPT: &str = include_str!("page/page.js");

/// What a page may do: nothing but ask its own server, and be itself.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A page with the shared parts in it.
pub fn assemble(page: &str) -> String {
    let head = HEAD.replace(LOOK_HERE, LOOK.trim_end()).replace(SCRIPT_HERE, SCRIPT.trim_end());
    page.replace(HEAD_HERE, head.trim_end()).replace(NOTICES_HERE, NOTICES.trim_end())
}

/// An assembled page, as an answer.
pub fn served(page: &'static str) -> Response {
    let mut answer = with_type(StatusCode::OK, "text/html; charset=utf-8", Body::from(page));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "<head>\n<!--head-->\n<title>a page</title>\n</head>\n<body>\n<!--notices-->\n</main>\n</body>";

    #[test]
    fn every_marker_is_replaced_and_what_is_the_page_s_own_stays() {
        let page = assemble(PAGE);
        for marker in [HEAD_HERE, NOTICES_HERE, LOOK_HERE, SCRIPT_HERE] {
            assert!(!page.contains(marker), "{marker}");
        }
        assert!(page.contains(LOOK.trim_end()) && page.contains(SCRIPT.trim_end()));
        assert!(page.starts_with("<head>\n<meta charset") && page.contains("</style>\n<title>a page</title>\n</head>"));
        assert!(page.contains(r#"id="problem-list""#) && page.ends_with("</section>\n</main>\n</body>"));
    }

    #[test]
    fn an_assembled_page_names_no_other_host_and_loads_nothing() {
        // The name of SVG looks like an address, but nobody asks there.
        let page = assemble(PAGE).replace("http://www.w3.org/2000/svg", "");
        for loads in ["://", "src=", "@import", "url(", "import("] {
            assert!(!page.contains(loads), "{loads}");
        }
    }

    #[test]
    fn what_a_server_says_is_written_as_text_and_never_as_markup() {
        for markup in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!SCRIPT.contains(markup), "{markup}");
        }
    }

    #[test]
    fn the_page_s_own_policy_is_the_one_of_its_answer() {
        let words = |policy: &str| -> Vec<String> {
            let mut rules: Vec<_> =
                policy.split(';').map(|rule| rule.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
            rules.sort();
            rules
        };
        let (_, rest) = HEAD.split_once("Content-Security-Policy\" content=\"").unwrap();
        let (own, _) = rest.split_once('"').unwrap();
        // Where a page may be framed can be said in an answer only.
        let mut answered = words(served("").headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap());
        answered.retain(|rule| rule != "frame-ancestors 'none'");
        assert_eq!(words(own), answered);
    }
}
