import JOSE

/// A response of the simulated Apple, and how to send it.
package struct SimulatedResponse: Sendable, Equatable {
    /// 0 if the request was dropped, which has no response.
    package var status: Int
    /// JSON, or nothing.
    package var body: String
    package var contentType = "application/json;charset=ISO-8859-1"
    /// `Retry-After` in seconds.
    package var retryAfter: Int?
    package var location: String?
    /// Milliseconds to wait before the response is sent.
    package var delay = 0
    /// True if the connection is closed in the middle of the response, or before it if there is none.
    package var isCut = false

    package init(status: Int = 200, body: String = "", retryAfter: Int? = nil) {
        self.status = status
        self.body = body
        self.retryAfter = retryAfter
    }

    /// No response: the connection ends before a byte is sent.
    package static let dropped: SimulatedResponse = {
        var response = SimulatedResponse(status: 0)
        response.isCut = true
        return response
    }()

    /// The response to a code grant, or to a refresh grant without `refreshToken`, in Apple's order of members.
    package static func tokens(access: String, refresh: String?, identity: String) -> SimulatedResponse {
        let refresh = refresh.map { "\"refresh_token\":\(JSONValue.quoted($0))," } ?? ""
        return SimulatedResponse(
            body: "{\"access_token\":\(JSONValue.quoted(access)),\"token_type\":\"Bearer\",\"expires_in\":3600,"
                + "\(refresh)\"id_token\":\(JSONValue.quoted(identity))}"
        )
    }

    /// All errors of Apple's endpoints have the status 400.
    package static func refusal(_ error: String, _ description: String? = nil) -> SimulatedResponse {
        let description = description.map { ",\"error_description\":\(JSONValue.quoted($0))" } ?? ""
        return SimulatedResponse(status: 400, body: "{\"error\":\(JSONValue.quoted(error))\(description)}")
    }
}
