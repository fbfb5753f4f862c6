//! `cargo xtask words` finds retired names, long lines and paths that lead nowhere, and wraps without a change of
//! words.

use crate::repository::{Repository, assert_says};

const WORDS: &[&str] = &["words"];

#[test]
fn a_retired_name_is_found_as_a_whole_word() {
    let repository = Repository::new();
    let table =
        "[[retired]]\nname = \"Home\"\nuse = \"LocalNode\"\nin = [\"crates/a\"]\nexcept = [\"crates/a/old.rs\"]\n";
    repository.write("xtask/words.toml", table);
    repository.write("crates/a/new.rs", "struct Homer;\nstruct Home;\n");
    repository.write("crates/a/old.rs", "struct Home;\n");
    repository.write("crates/b/new.rs", "struct Home;\n");
    assert_says(&repository.fault(WORDS), &["crates/a/new.rs:2: `Home` is a retired name", "say `LocalNode`"]);

    repository.write("crates/a/new.rs", "fn at_Homer() {}\nfn is_at_Home_now() {}\n");
    assert_says(&repository.fault(WORDS), &["crates/a/new.rs:2: `Home` is a retired name"]);
}

#[test]
fn a_long_line_is_found_but_for_tables_and_addresses() {
    let repository = Repository::new();
    let long = "x".repeat(119);
    repository.write("page.md", &format!("| {long} |\nsee https://example.org/{long}\n"));
    repository.write("code.rs", &format!("// {}\n// é{}\n", "x".repeat(117), "é".repeat(116)));
    repository.is_clean(WORDS);

    repository.write("code.rs", &format!("const A: &str = \"{long}\";\n"));
    let found = repository.fault(WORDS);
    assert_says(&found, &["code.rs:1: 138 columns, and a line has at most 120", "break it"]);

    repository.write("xtask/words.toml", "[long_lines]\n\"code.rs\" = 1\n");
    repository.is_clean(WORDS);
    repository.write("code.rs", "const A: u8 = 1;\n");
    assert_says(&repository.fault(WORDS), &["xtask/words.toml:2: ", "1 are excepted", "delete this line"]);
}

#[test]
fn a_path_that_leads_nowhere_is_found_in_texts_and_comments() {
    let repository = Repository::new();
    repository.write("docs/page.md", "text\n");
    repository
        .write("crates/a/src/one.rs", "//! `two.rs`, `crates/a/src/{one,two}.rs`, docs/page.md, `a/src/one.rs`\n");
    repository.write("crates/a/src/two.rs", "const A: &str = \"docs/gone.md\"; // https://x.org/docs/gone.md\n");
    repository
        .write("README.md", "[page](docs/page.md#part), [web](https://x.org/a.md), `target/x.rs/`, `/docs/gone.md`\n");
    repository.is_clean(WORDS);

    let dead = [
        ("crates/a/src/one.rs", "//! As in\n//! `three.rs`.\n", 2, "three.rs"),
        ("crates/a/src/one.rs", "//! `crates/a/src/{two,three}.rs`\n", 1, "crates/a/src/three.rs"),
        ("crates/a/src/one.rs", "fn f() {} // see docs/gone.md.\n", 1, "docs/gone.md"),
        ("crates/a/src/one.rs", "// (`a/src/gone`)\n", 1, "a/src/gone"),
        ("tool.py", "\"\"\"A tool:\n\nsee docs/gone.md\n\"\"\"\n", 3, "docs/gone.md"),
        ("docs/other.md", "\n[page](gone.md)\n", 2, "gone.md"),
        ("docs/other.md", "Run `docs/gone`.\n", 1, "docs/gone"),
    ];
    for (file, text, line, name) in dead {
        let before = if file.ends_with("one.rs") { repository.read(file) } else { String::new() };
        repository.write(file, text);
        let what = format!("{file}:{line}: `{name}` is not in this repository");
        assert_says(&repository.fault(WORDS), &[&what, "name what is there"]);
        repository.write(file, &before);
    }

    repository.write("docs/other.md", "Run `docs/gone`.\n");
    repository.write("xtask/words.toml", "elsewhere = [\n    \"docs/gone\",\n]\n");
    repository.is_clean(WORDS);
    repository.write("docs/other.md", "Nothing.\n");
    assert_says(&repository.fault(WORDS), &["xtask/words.toml:2: nothing names \"docs/gone\" any more", "delete"]);
}

#[test]
fn wrapping_changes_no_word_and_leaves_what_fits() {
    let words = |count: usize| vec!["word"; count].join(" ");
    let text = format!(
        "# {0}\n\n- {1}\n  goes on\n- next\n\n{1} `a b`\nend\n\n```\n{1}\n```\n\n| {1} |\n",
        words(10),
        words(30)
    );
    let code = format!("/// {0}\n/// goes on\n///\n/// ```text\n/// {0}\n/// ```\nfn f() {{}} // {0}\n", words(30));
    let repository = Repository::new();
    repository.write("page.md", &text);
    repository.write("code.rs", &code);
    let (printed, _) = repository.run(&["words", "--wrap", "page.md"]);
    assert_eq!(printed, "page.md\n");
    assert_eq!(repository.read("code.rs"), code);
    repository.run(&["words", "--wrap"]);

    let plain = |text: &str| text.replace("///", " ").split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (page, wrapped) = (repository.read("page.md"), repository.read("code.rs"));
    assert_eq!(plain(&page), plain(&text));
    assert_eq!(plain(&wrapped), plain(&code));
    assert!(page.contains(&format!("- {}\n  {} goes on\n- next\n", words(23), words(7))), "{page}");
    assert!(page.contains(&format!("```\n{}\n```", words(30))), "code of a page stays");
    assert!(wrapped.starts_with(&format!("/// {}\n/// {} goes on\n///\n", words(23), words(7))), "{wrapped}");
    assert!(wrapped.contains(&format!("/// ```text\n/// {}\n", words(30))), "code of a comment stays");
    let (again, _) = repository.run(&["words", "--wrap"]);
    assert_eq!(again, "");
}
