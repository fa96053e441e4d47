//! Measures requests to S3, each with all its attempts. Touches the counts of this process only.

use std::time::Instant;

use aws_sdk_s3::config::{
    ConfigBag, Intercept, RuntimeComponents,
    interceptors::{BeforeSerializationInterceptorContextRef, FinalizerInterceptorContextRef},
};
use aws_smithy_runtime_api::{box_error::BoxError, client::orchestrator::Metadata};
use aws_smithy_types::config_bag::{Storable, StoreReplace};

use crate::metrics;

/// Looks at each request of a client when it begins and when it is over.
#[derive(Debug)]
pub(super) struct Measuring;

/// When a request began.
#[derive(Debug)]
struct Begun(Instant);

impl Storable for Begun {
    type Storer = StoreReplace<Self>;
}

impl Intercept for Measuring {
    fn name(&self) -> &'static str {
        "Measuring"
    }

    fn read_before_execution(
        &self,
        _: &BeforeSerializationInterceptorContextRef<'_>,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        config.interceptor_state().store_put(Begun(Instant::now()));
        Ok(())
    }

    fn read_after_execution(
        &self,
        context: &FinalizerInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let (Some(Begun(begun)), Some(operation)) = (config.load::<Begun>(), config.load::<Metadata>()) else {
            return Ok(());
        };
        let status = context.response().map(|response| response.status().as_u16());
        let is_error = !matches!(context.output_or_error(), Some(Ok(_)));
        // What is missing, or there already, or has changed, is an answer as good as any.
        let failed = is_error && !matches!(status, Some(404 | 409 | 412));
        metrics::s3_request(operation.name(), begun.elapsed(), failed);
        Ok(())
    }
}
