import JOSE

/// A request that the simulated Apple answered, without codes, tokens and secrets.
package struct RequestRecord: Sendable, Equatable {
    static let maximumCount = 10_000

    package let endpoint: Behaviour.Endpoint
    /// Apple's time, in seconds since 1970.
    package let time: Int64
    /// The fields that are not secret.
    package let grant: String?
    package let client: String?
    package let redirectURI: String?
    /// The names of all fields.
    package let fields: [String]
    /// nil if the request was dropped.
    package let status: Int?
    /// The member `error` of the response.
    package let error: String?

    init(_ endpoint: Behaviour.Endpoint, _ form: FormFields?, _ response: SimulatedResponse, at time: Int64) {
        self.endpoint = endpoint
        self.time = time
        grant = form?["grant_type"]
        client = form?["client_id"]
        redirectURI = form?["redirect_uri"]
        fields = form?.names ?? []
        status = response.status == SimulatedResponse.dropped.status ? nil : response.status
        error = (try? JSONValue(parsing: Array(response.body.utf8)))?["error"]?.string
    }

    var json: JSONValue {
        .object([
            .init("endpoint", .string(endpoint.rawValue)), .init("time", .number(JSONNumber(time))),
            .init("grant_type", grant.json), .init("client_id", client.json), .init("redirect_uri", redirectURI.json),
            .init("fields", .array(fields.map(JSONValue.string))),
            .init("status", status.map { .number(JSONNumber(Int64($0))) } ?? .null), .init("error", error.json),
        ])
    }
}

extension String? {
    /// The text, or null.
    var json: JSONValue { map(JSONValue.string) ?? .null }
}
