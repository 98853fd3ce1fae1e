//! The HTML file: style, scripts and data in one. The script makes all text from the data by text nodes, so that no text of a file
//! becomes markup.

use serde_json::Value;

const STYLE: &str = include_str!("page/page.css");
const CHART_STYLE: &str = include_str!("vendor/uplot/uPlot.min.css");
const CHART_SCRIPT: &str = include_str!("vendor/uplot/uPlot.iife.min.js");
const CHART_LICENCE: &str = include_str!("vendor/uplot/LICENSE");
const SCRIPTS: [&str; 3] =
    [include_str!("page/text.js"), include_str!("page/charts.js"), include_str!("page/page.js")];

/// What the page may do: run its own scripts, show its own pictures, and ask the server that it came from.
pub(super) const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; \
                                 connect-src 'self'; base-uri 'none'; form-action 'none'";

/// The beginning of every page, by which a report is known from other files.
pub(super) const BEGIN: &str = "<!doctype html>\n<!-- a report of dtrain -->\n";

/// Returns the page of the object.
pub(super) fn page(object: &Value) -> String {
    // The only way out of a script element is a tag.
    let data = object.to_string().replace('<', "\\u003c");
    let scripts = SCRIPTS.concat();
    format!(
        "{BEGIN}<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>dtrain report</title>\n<style>\n{CHART_STYLE}\n{STYLE}</style>\n</head>\n<body>\n<main id=\"page\">\
         <noscript>This page needs JavaScript: its curves are drawn from the data that it contains.</noscript></main>\n\
         <script type=\"application/json\" id=\"data\">{data}</script>\n\
         <script>\n/* uPlot\n{CHART_LICENCE}*/\n{CHART_SCRIPT}</script>\n<script>\n\"use strict\";\n{scripts}</script>\n</body>\n</html>\n"
    )
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    /// Returns the object in a page, and the page without it.
    pub(in super::super) fn parts(page: &str) -> (Value, String) {
        let (before, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
        let (data, after) = rest.split_once("</script>").unwrap();
        (serde_json::from_str(data).unwrap(), before.to_owned() + after)
    }

    #[test]
    fn no_text_of_a_file_is_markup_and_nothing_comes_from_elsewhere() {
        let hostile = "</script><script>alert(1)</script><img src=x onerror=alert(1)><!-- <script> ]]> \u{2028}\0 &lt; \"'`${x}";
        let object = json!({"runs": [{"name": hostile, "charts": [{"title": hostile}]}], hostile: hostile});
        let page = page(&object);
        let (data, rest) = parts(&page);
        assert_eq!(data, object);
        assert_eq!(rest, parts(&super::page(&json!({}))).1, "the text stays within the data");
        let count = |what: &str| rest.to_lowercase().matches(what).count();
        // The data's own element is cut away, half of it.
        assert_eq!((count("<script"), count("</script"), count("</style"), count("<!--")), (2, 2, 1, 1));
        // A comment has an address: that of the licence's project.
        let comments = "/*! https://github.com/leeoniya/uPlot (v1.6.32) */";
        let rest = rest.replace(comments, "");
        for outside in ["://", " src=", " href=", "url(", "@import", "<link", "import("] {
            assert!(!rest.contains(outside), "{outside}");
        }
        for unsafe_way in ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("] {
            assert!(SCRIPTS.iter().all(|script| !script.contains(unsafe_way)), "{unsafe_way}");
        }
        assert!(CHART_LICENCE.starts_with("The MIT License") && rest.contains("Leon Sorokin"));
    }
}
