//! `#[test]` for programs that [`kiln-harness`](../kiln_harness/index.html) runs. It takes the place of the compiler's own
//! attribute, and of tokio's: a function that is `async` runs in a runtime of its own.

use proc_macro::TokenStream;
use quote::quote;
use syn::{
    Error, Expr, Ident, ItemFn, Lit, Meta, MetaNameValue,
    parse::{Parse, ParseStream},
    parse_macro_input,
};

/// What stands in the brackets: `threads = N` for a runtime of so many threads.
struct Options {
    threads: Option<Expr>,
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if input.is_empty() {
            return Ok(Self { threads: None });
        }
        let pair: MetaNameValue = input.parse()?;
        if pair.path.is_ident("threads") {
            Ok(Self {
                threads: Some(pair.value),
            })
        } else {
            Err(Error::new_spanned(pair, "a test takes `threads = N`"))
        }
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
                run: #run,
            }
        }
    }
    .into()
}
