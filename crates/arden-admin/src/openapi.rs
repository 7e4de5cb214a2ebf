//! The OpenAPI 3.1 document, made from the table of routes and from the Rust types of the bodies: fields, doc comments
//! and serde attributes are the only definition. A test calls every route and compares the answers with the document.

use schemars::{
    SchemaGenerator,
    generate::{Contract, SchemaSettings},
};
use serde_json::{Map, Value, json};

use crate::{
    api::routes::{Answer, Route},
    error::AdminError,
};

/// Makes the schemas of requests and of answers. A field that a request may leave out is in every answer.
struct Schemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Schemas {
    fn new() -> Schemas {
        let generator = |contract: Contract| {
            let settings = SchemaSettings::draft2020_12().with(|s| {
                s.definitions_path = "/components/schemas".into();
                s.meta_schema = None;
                s.contract = contract;
            });
            settings.into_generator()
        };
        Schemas { requests: generator(Contract::Deserialize), answers: generator(Contract::Serialize) }
    }

    /// All schemas that are referred to, by name. A type of both requests and answers is described as in requests.
    fn all(mut self) -> Map<String, Value> {
        let mut all = self.answers.take_definitions(true);
        all.extend(self.requests.take_definitions(true));
        all
    }
}

/// The OpenAPI 3.1 document of these routes.
pub(crate) fn document(routes: &[Route]) -> Value {
    let (mut paths, mut schemas) = (Map::new(), Schemas::new());
    for route in routes {
        let item = paths.entry(route.path).or_insert_with(|| json!({}));
        item[route.method.as_str().to_lowercase()] = operation(route, &mut schemas);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Arden",
            "summary": "Administration of an Arden file server",
            "description": "HTTP/1.1 on the Unix socket api.sock in the daemon's state directory.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"}
        },
        "servers": [{"url": "http://localhost"}],
        "paths": paths,
        "components": {"schemas": schemas.all()},
    })
}

fn operation(route: &Route, schemas: &mut Schemas) -> Value {
    let json_of = |schema: Value| json!({"application/json": {"schema": schema}});
    let mut success = json!({"description": route.summary});
    match route.answer {
        Answer::One(schema) => success["content"] = json_of(schema(&mut schemas.answers).into()),
        Answer::List(schema) => {
            let items: Value = schema(&mut schemas.answers).into();
            success["content"] = json_of(json!({"type": "array", "items": items}));
        }
        Answer::Text => success["content"] = json!({"text/plain": {"schema": {"type": "string"}}}),
        Answer::Document => success["content"] = json_of(json!({"type": "object"})),
        Answer::Nothing => {}
    }
    let error: Value = schemas.answers.subschema_for::<AdminError>().into();
    let mut responses = Map::new();
    responses.insert(route.success().to_string(), success);
    for status in route.errors.iter().chain(&[500]) {
        let description = match status {
            400 => "The request cannot be meant that way",
            404 => "There is no such thing",
            409 => "It exists already, or the present state forbids it",
            _ => "The daemon or its disk failed",
        };
        responses.insert(status.to_string(), json!({"description": description, "content": json_of(error.clone())}));
    }
    let mut out = json!({"operationId": route.operation, "summary": route.summary, "responses": responses});
    if let Some(body) = route.body {
        out["requestBody"] = json!({"required": true, "content": json_of(body(&mut schemas.requests).into())});
    }
    let parameters: Vec<Value> = route
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .collect();
    if !parameters.is_empty() {
        out["parameters"] = parameters.into();
    }
    out
}
