//! Descriptions and templates that would read files or grow without end.

use std::fmt::Write;

use crate::hostile::case::{Case, Upload};
use crate::support::Recipe;

/// Ten entities of ten entities of …
fn laughs() -> String {
    let mut text = String::from("<?xml version=\"1.0\"?>\n<!DOCTYPE image [\n<!ENTITY l0 \"ha\">\n");
    for level in 1..10 {
        let ten = format!("&l{};", level - 1).repeat(10);
        writeln!(text, "<!ENTITY l{level} \"{ten}\">").unwrap();
    }
    text.push_str("]>\n<image schemaversion=\"8.0\" name=\"laughs\">&l9;</image>\n");
    text
}

const EXTERNAL: &str = "<?xml version=\"1.0\"?>\n<!DOCTYPE image [<!ENTITY secret SYSTEM \"file:///etc/passwd\">]>\n\
                        <image schemaversion=\"8.0\" name=\"entity\">&secret;</image>\n";

pub fn cases() -> Vec<Case> {
    let described = |name, danger, text: &str| {
        let recipe = Recipe::copy_of("rpm-minimal")
            .without(".ims_recipe_template.yaml")
            .with("config.xml", text);
        Case::new(name, danger, Upload::Directory(recipe)).fails("recipe_config_invalid")
    };
    let rendered = |name, danger, template: &str| {
        let recipe = Recipe::copy_of("rpm-minimal")
            .with("motd", template)
            .with(".ims_recipe_template.yaml", "template_files: [config.xml, motd]\n");
        Case::new(name, danger, Upload::Directory(recipe))
    };
    vec![
        described(
            "billion laughs",
            "becomes gigabytes of text when its entities are resolved",
            &laughs(),
        ),
        described(
            "external entity",
            "puts a file of whoever parses it into the image",
            EXTERNAL,
        ),
        described(
            "many attributes",
            "occupies the parser for a minute",
            &format!(
                "<image{}/>",
                (0..200_000).fold(String::new(), |text, number| text + &format!(" a{number}='1'"))
            ),
        )
        .says(&["more than 200 attributes"]),
        rendered(
            "endless template",
            "computes for ever",
            "{% for a in range(9999) %}{% for b in range(9999) %}{{ a * b }}{% endfor %}{% endfor %}",
        )
        .fails("template_failed"),
        rendered(
            "growing template",
            "makes a string of some gigabytes in one instruction",
            "{{ 'x' * 5000000000 }}",
        )
        .limited("job_mem_size", 1)
        .fails("template_failed"),
        rendered(
            "including template",
            "puts a file of the system into the image",
            "{% include '/etc/passwd' %}",
        )
        .fails("template_failed"),
        rendered(
            "nested template",
            "overflows the stack of the agent",
            &format!("{{{{ {}x }}}}", "not ".repeat(200_000)),
        )
        .says(&["ended: signal"])
        .fails("template_failed"),
        rendered(
            "climbing template",
            "reaches the interpreter through an object, as in Python's Jinja",
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        )
        .fails("template_undefined"),
    ]
}
