//! Splits Rust source into words and signs.

pub(crate) fn is_word(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Returns words, `::` and single signs, without comments, strings, characters and `#[cfg(test)]` modules.
pub(crate) fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let first = rest.chars().next().unwrap();
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("/*") {
            at += rest.find("*/").map_or(rest.len(), |end| end + 2);
        } else if let Some(length) = raw_string(rest) {
            at += length;
        } else if first == '"' {
            at += string(rest);
        } else if first == '\'' {
            at += character(rest);
        } else if is_word(rest) {
            let length = rest.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(rest.len());
            tokens.push(rest[..length].to_owned());
            at += length;
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            at += 2;
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            at += first.len_utf8();
        }
    }
    without_tests(tokens)
}

fn raw_string(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix("br").or(rest.strip_prefix('r'))?;
    let hashes = after.bytes().take_while(|byte| *byte == b'#').count();
    let content = after[hashes..].strip_prefix('"')?;
    let end = content.find(&format!("\"{}", "#".repeat(hashes))).unwrap_or(content.len());
    Some(rest.len() - content.len() + end + 1 + hashes)
}

fn string(rest: &str) -> usize {
    let mut escaped = false;
    let end = rest[1..].find(|next: char| {
        let ends = next == '"' && !escaped;
        escaped = next == '\\' && !escaped;
        ends
    });
    end.map_or(rest.len(), |end| end + 2)
}

/// Returns the length of a character literal; for a lifetime, that of its apostrophe.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => rest[3..].find('\'').map_or(rest.len(), |end| end + 4),
        Some(_) if chars.next().is_some_and(|(_, next)| next == '\'') => rest[1..].find('\'').unwrap() + 2,
        _ => 1,
    }
}

fn without_tests(tokens: Vec<String>) -> Vec<String> {
    const TESTS: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept: Vec<String> = Vec::with_capacity(tokens.len());
    let mut left = tokens.into_iter();
    while let Some(token) = left.next() {
        kept.push(token);
        if kept.len() < TESTS.len() || kept[kept.len() - TESTS.len()..] != TESTS {
            continue;
        }
        kept.truncate(kept.len() - TESTS.len());
        // Skips the following item: to its semicolon, or to the end of its block.
        let mut depth = 0;
        for token in left.by_ref() {
            match token.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 && (token == "}" || token == ";") {
                break;
            }
        }
    }
    kept
}
