/// A departure from Apple's normal behaviour at one endpoint, for the next requests.
package struct Behaviour: Sendable, Equatable {
    package enum Endpoint: String, Sendable, CaseIterable {
        case keys, token, revoke
    }

    package enum Effect: Sendable, Equatable {
        /// The request is processed normally.
        case normal
        /// The request is not processed, so that a code stays unused.
        case answer(SimulatedResponse)
        /// The request is processed, so that a code is used up, and its response is lost.
        case cut
        /// The request is not processed, and the connection ends without a response.
        case drop
        /// The identity token in the response is about another person.
        case otherSubject
        /// The identity token in the response has the hash of another access token.
        case otherHash
    }

    /// The values that a control request may have.
    package enum Limits {
        package static let times: ClosedRange<Int64> = 1...1_000_000
        /// In milliseconds.
        package static let delay: ClosedRange<Int64> = 0...600_000
        package static let status: ClosedRange<Int64> = 200...599
        /// In bytes.
        package static let size: ClosedRange<Int64> = 0...16_777_216
        /// In seconds.
        package static let retryAfter: ClosedRange<Int64> = 0...86_400
    }

    package var endpoint = Endpoint.token
    /// The number of requests.
    package var times = 1
    /// In milliseconds.
    package var delay = 0
    package var effect = Effect.normal
}
