use std::{cell::RefCell, fs::Permissions, os::unix::fs::PermissionsExt};

use super::*;

struct Recipe {
    dir: tempfile::TempDir,
}

impl Recipe {
    /// A recipe whose list names every file except those that begin with `_`.
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let recipe = Self { dir };
        let mut list = "template_files:\n".to_owned();
        for (name, text) in files {
            recipe.write(name, text);
            if !name.starts_with('_') {
                list.extend(["  - ", name, "\n"]);
            }
        }
        recipe.write(LIST_FILE, &list);
        recipe
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, text).unwrap();
    }

    fn text(&self, name: &str) -> String {
        fs_err::read_to_string(self.path().join(name)).unwrap()
    }

    fn render(&self, values: &[(&str, &str)]) -> Result<(), Failure> {
        self.render_in(TemplateMode::Strict, values).0
    }

    fn render_in(&self, mode: TemplateMode, values: &[(&str, &str)]) -> (Result<(), Failure>, Vec<String>) {
        let values = values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let said = RefCell::new(Vec::new());
        let result = render(self.path(), &values, mode, &|line| {
            said.borrow_mut().push(line.to_owned());
        });
        (result, said.into_inner())
    }
}

/// The result of rendering one template.
fn rendered(template: &str, values: &[(&str, &str)]) -> String {
    let recipe = Recipe::new(&[("file", template)]);
    recipe.render(values).unwrap();
    recipe.text("file")
}

#[test]
fn what_recipes_use_works() {
    for (template, expected) in [
        ("a {{ NAME }} b\n", "a x,y b\n"),
        ("two newlines {{ NAME }}\n\n", "two newlines x,y\n\n"),
        ("no newline {{ NAME }}", "no newline x,y"),
        ("{% for r in NAME.split(',') %}<{{ r }}>{% endfor %}", "<x><y>"),
        (
            "{% for r in NAME | split(',') %}{{ loop.index }}{{ r }}{% endfor %}",
            "1x2y",
        ),
        (
            "{% if NAME.startswith('x') and NAME is defined %}yes{% else %}no{% endif %}",
            "yes",
        ),
        (
            "{{ NAME | upper }} {{ NAME | replace(',', '-') }} {{ NAME.upper() }}",
            "X,Y x-y X,Y",
        ),
        ("{{ OTHER | default('d') }}", "d"),
        ("{# comment #}{% set a = NAME ~ '!' %}{{ a }}", "x,y!"),
        ("$V ${V} {x} & <", "$V ${V} {x} & <"),
        ("{{ '<&>' }}", "<&>"),
        ("{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m(NAME) }}", "[x,y]"),
        ("{% raw %}{{ NAME }}{% endraw %}", "{{ NAME }}"),
    ] {
        assert_eq!(rendered(template, &[("NAME", "x,y")]), expected, "{template}");
    }
    // XML files must not be escaped either.
    let recipe = Recipe::new(&[("config.xml", "{{ A }}")]);
    recipe.render(&[("A", "<x/>&")]).unwrap();
    assert_eq!(recipe.text("config.xml"), "<x/>&");
}

#[test]
fn unlisted_files_stay_and_permissions_are_kept() {
    let recipe = Recipe::new(&[
        ("sub/run.sh", "{{ A }}"),
        ("read-only", "{{ A }}"),
        ("_unlisted", "{{ A }}"),
    ]);
    let chmod = |name, mode| fs_err::set_permissions(recipe.path().join(name), Permissions::from_mode(mode)).unwrap();
    let mode = |name| fs_err::metadata(recipe.path().join(name)).unwrap().permissions().mode() & 0o777;
    chmod("sub/run.sh", 0o755);
    chmod("read-only", 0o444);
    recipe.render(&[("A", "1")]).unwrap();
    assert_eq!(
        (recipe.text("sub/run.sh"), recipe.text("_unlisted")),
        ("1".into(), "{{ A }}".into())
    );
    assert_eq!((mode("sub/run.sh"), mode("read-only")), (0o755, 0o444));
}

#[test]
fn includes_and_imports_are_of_recipe_files_only() {
    let recipe = Recipe::new(&[
        (
            "file",
            "{% include 'sub/_part' %} {% from '_macros' import m %}{{ m(A) }}",
        ),
        ("_macros", "{% macro m(a) %}[{{ a }}]{% endmacro %}"),
    ]);
    recipe.write("sub/_part", "part {{ A }}");
    recipe.render(&[("A", "1")]).unwrap();
    assert_eq!(recipe.text("file"), "part 1 [1]");

    for name in [
        "/etc/hostname",
        "../_outside",
        "sub/../../_outside",
        "_link",
        "_missing",
        ".",
    ] {
        let recipe = Recipe::new(&[("file", &format!("{{% include '{name}' %}}"))]);
        std::os::unix::fs::symlink("/etc/passwd", recipe.path().join("_link")).unwrap();
        let failure = recipe.render(&[]).unwrap_err();
        assert_eq!(failure.code, Code::TemplateFailed, "{name}: {failure}");
    }
}

#[test]
fn an_undefined_name_is_named_with_its_place() {
    for (template, detail, hint) in [
        (
            "one\n{{ NAME }}",
            "file:2: `NAME` has no value",
            "give it one: --set NAME=VALUE",
        ),
        (
            "{% if NAME %}{% endif %}",
            "file:1: `NAME` has no value",
            "give it one: --set NAME=VALUE",
        ),
        (
            "{% for x in NAME %}{% endfor %}",
            "file:1: `NAME` has no value",
            "give it one: --set NAME=VALUE",
        ),
        (
            "\n\n{{ NAME | upper }}",
            "file:3: `NAME` has no value",
            "give it one: --set NAME=VALUE",
        ),
        (
            "{{ NAME.split(',') }}",
            "file:1: `NAME` has no value",
            "give it one: --set NAME=VALUE",
        ),
        (
            "{{ A }}{{ A.b }}",
            "file:1: `A.b` has no value",
            "give it one: --set A=VALUE",
        ),
        (
            "\n{% include '_part' %}",
            "_part:2: `NAME` has no value",
            "give it one: --set NAME=VALUE",
        ),
    ] {
        let recipe = Recipe::new(&[("file", template), ("_part", "\n{{ NAME }}")]);
        let failure = recipe.render(&[("A", "1")]).unwrap_err();
        assert_eq!(failure.code, Code::TemplateUndefined, "{failure}");
        assert_eq!(
            (failure.detail.as_str(), failure.hint.as_deref()),
            (detail, Some(hint)),
            "{template}"
        );
        assert_eq!(recipe.text("file"), template);
    }
}

#[test]
fn lenient_mode_renders_nothing_for_undefined_names() {
    let template = "a{{ X }}b{% for x in Y %}{% endfor %}{% if Z %}{% endif %}\n";
    let recipe = Recipe::new(&[("file", template)]);
    recipe.render_in(TemplateMode::Lenient, &[]).0.unwrap();
    assert_eq!(recipe.text("file"), "ab\n");
}

#[test]
fn broken_templates_name_file_and_line() {
    for (template, code, place) in [
        ("\n{% if A %}", Code::TemplateSyntax, "file:2: "),
        ("{{ a b }}", Code::TemplateSyntax, "file:1: "),
        ("\n\n{{ A | nonsense }}", Code::TemplateFailed, "file:3: "),
        ("{{ A.nonsense() }}", Code::TemplateFailed, "file:1: "),
        (
            "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
            Code::TemplateFailed,
            "file:1",
        ),
        (
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            Code::TemplateFailed,
            "file:1",
        ),
        ("{% include 'file' %}", Code::TemplateFailed, "file:1"),
    ] {
        let failure = Recipe::new(&[("file", template)]).render(&[("A", "1")]).unwrap_err();
        assert_eq!(failure.code, code, "{template}: {failure}");
        assert!(failure.detail.starts_with(place), "{template}: {failure}");
        assert!(failure.hint.is_some() && !failure.detail.contains('\n'));
    }
}

#[test]
fn a_template_cannot_become_huge() {
    let recipe = Recipe::new(&[(
        "file",
        "{% set a = 'x' * 1000000 %}{% for i in range(1000) %}{{ a }}{% endfor %}",
    )]);
    let failure = recipe.render(&[]).unwrap_err();
    assert_eq!(failure.code, Code::TemplateFailed, "{failure}");
    assert!(failure.detail.contains("32 MiB"), "{failure}");
}

#[test]
fn a_failure_leaves_all_files_as_they_were() {
    let recipe = Recipe::new(&[("a", "{{ A }}"), ("b", "{{ B }}")]);
    recipe.render(&[("A", "1")]).unwrap_err();
    assert_eq!(recipe.text("a"), "{{ A }}");
}

#[test]
fn a_broken_list_is_an_error() {
    for list in [
        "",
        "template_files:\n",
        "files: [a]\n",
        "template_files: a\n",
        "template_files: [1, {}]\n",
        "{",
        "\u{0}",
        "template_files: [[a]]\n",
    ] {
        let recipe = Recipe::new(&[]);
        recipe.write(LIST_FILE, list);
        let failure = recipe.render(&[]).unwrap_err();
        assert_eq!(failure.code, Code::TemplateListInvalid, "{list}: {failure}");
        assert!(!failure.detail.contains('\n'), "{failure}");
    }
    let recipe = Recipe::new(&[]);
    recipe.write(LIST_FILE, "template_files: []\nother: 1\n");
    recipe.render(&[]).unwrap();
}

#[test]
fn listed_files_must_be_in_the_recipe() {
    for name in ["missing", "/etc/passwd", "../x", "sub", "link", "a/../a", "''"] {
        let recipe = Recipe::new(&[]);
        recipe.write("sub/x", "");
        std::os::unix::fs::symlink("/etc/passwd", recipe.path().join("link")).unwrap();
        recipe.write(LIST_FILE, &format!("template_files: [{name}]"));
        let failure = recipe.render(&[]).unwrap_err();
        assert_eq!(failure.code, Code::TemplateFileMissing, "{name}: {failure}");
    }
    let recipe = Recipe::new(&[]);
    fs_err::write(recipe.path().join("binary"), b"\xff\xfe").unwrap();
    recipe.write(LIST_FILE, "template_files: [binary]");
    let failure = recipe.render(&[]).unwrap_err();
    assert_eq!(failure.code, Code::TemplateFailed);
    assert!(failure.detail.contains("binary"), "{failure}");
    let part = b"<?xml version='1.0' encoding='iso-8859-1'?><image name='\xfc{{ A }}'/>";
    fs_err::write(recipe.path().join("binary"), part).unwrap();
    recipe.render(&[("A", "1")]).unwrap();
    assert!(recipe.text("binary").ends_with("<image name='ü1'/>"));
}

#[test]
fn a_link_within_the_recipe_is_followed() {
    let recipe = Recipe::new(&[("real", "{{ A }}")]);
    std::os::unix::fs::symlink("real", recipe.path().join("link")).unwrap();
    recipe.write(LIST_FILE, "template_files: [link]");
    recipe.render(&[("A", "1")]).unwrap();
    assert_eq!(recipe.text("real"), "1");
    assert!(recipe.path().join("link").is_symlink());
}

#[test]
fn values_without_a_list_are_warned_about() {
    let recipe = Recipe {
        dir: tempfile::tempdir().unwrap(),
    };
    let (result, _) = recipe.render_in(TemplateMode::Strict, &[("A", "1")]);
    result.unwrap();
    let values = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
    assert_eq!(unused(recipe.dir.path(), &values).unwrap().code, Code::RecipeValues);
    assert_eq!(unused(recipe.dir.path(), &BTreeMap::new()), None);
    fs_err::write(recipe.dir.path().join(LIST_FILE), "template_files: []").unwrap();
    assert_eq!(unused(recipe.dir.path(), &values), None);
}

#[test]
fn needed_values_are_those_the_files_look_up() {
    let recipe = Recipe::new(&[
        (
            "a",
            "{{ A }} {% for x in B.split(',') %}{{ x }}{{ loop.index }}{% endfor %}{% set c = C %}{{ c }}",
        ),
        (
            "b",
            "{{ A }} {% if D is defined %}{% endif %}{{ range(3) }}{{ namespace() }}",
        ),
    ]);
    let needed = needed_values(recipe.path()).unwrap();
    assert_eq!(needed.into_iter().collect::<Vec<_>>(), ["A", "B", "C", "D"]);
    let none = tempfile::tempdir().unwrap();
    assert!(needed_values(none.path()).unwrap().is_empty());
    let broken = Recipe::new(&[("a", "{% if %}")]);
    assert_eq!(needed_values(broken.path()).unwrap_err().code, Code::TemplateSyntax);
}
