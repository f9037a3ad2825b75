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

    package var endpoint = Endpoint.token
    /// The number of requests.
    package var times = 1
    /// In milliseconds.
    package var delay = 0
    package var effect = Effect.normal
}
