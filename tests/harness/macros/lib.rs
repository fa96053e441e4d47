//! `#[test]` for programs that [`kiln-harness`](../kiln_harness/index.html) runs. It takes the place of the compiler's own
//! attribute, and of tokio's: a function that is `async` runs in a runtime of its own.

use proc_macro::TokenStream;
use quote::quote;
use syn::{
    Error, Expr, Ident, ItemFn, Lit, Meta, Token,
    parse::{Parse, ParseStream},
    parse_macro_input,
    punctuated::Punctuated,
};

/// What stands in the brackets: `threads = N` for a runtime of so many threads, `thorough` for a test that only
/// `make test-all` runs.
#[derive(Default)]
struct Options {
    threads: Option<Expr>,
    thorough: bool,
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut options = Self::default();
        for meta in Punctuated::<Meta, Token![,]>::parse_terminated(input)? {
            match meta {
                Meta::Path(path) if path.is_ident("thorough") => options.thorough = true,
                Meta::NameValue(pair) if pair.path.is_ident("threads") => options.threads = Some(pair.value),
                other => return Err(Error::new_spanned(other, "a test takes `thorough` and `threads = N`")),
            }
        }
        Ok(options)
    }
}

/// Adds a function to the tests of its program. `#[ignore = "reason"]` below it has its usual meaning.
#[proc_macro_attribute]
pub fn test(options: TokenStream, item: TokenStream) -> TokenStream {
    let options = parse_macro_input!(options as Options);
    let mut function = parse_macro_input!(item as ItemFn);
    let mut ignored = quote!(None);
    let mut kept = Vec::new();
    for attribute in std::mem::take(&mut function.attrs) {
        if !attribute.path().is_ident("ignore") {
            kept.push(attribute);
            continue;
        }
        let Meta::NameValue(pair) = &attribute.meta else {
            return Error::new_spanned(attribute, "say why: #[ignore = \"…\"]")
                .to_compile_error()
                .into();
        };
        let Expr::Lit(literal) = &pair.value else {
            return Error::new_spanned(pair, "a text").to_compile_error().into();
        };
        let Lit::Str(reason) = &literal.lit else {
            return Error::new_spanned(pair, "a text").to_compile_error().into();
        };
        ignored = quote!(Some(#reason));
    }
    function.attrs = kept;
    let name: &Ident = &function.sig.ident;
    let thorough = options.thorough;
    let run = match (function.sig.asyncness.is_some(), options.threads) {
        (true, Some(threads)) => quote!(|| ::kiln_harness::block_on(#threads, #name())),
        (true, None) => quote!(|| ::kiln_harness::block_on(1, #name())),
        (false, None) => quote!(|| #name()),
        (false, Some(threads)) => {
            return Error::new_spanned(threads, "only an async test has threads")
                .to_compile_error()
                .into();
        }
    };
    quote! {
        #function
        ::kiln_harness::inventory::submit! {
            ::kiln_harness::Case {
                module: ::core::module_path!(),
                name: ::core::stringify!(#name),
                ignored: #ignored,
                thorough: #thorough,
                run: #run,
            }
        }
    }
    .into()
}
