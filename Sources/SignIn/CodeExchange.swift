/// How much a sign-in depends on the exchange of its code.
package enum CodeExchange: String, Sendable, Hashable, CaseIterable {
    /// The identity token alone decides.
    case preferred
    case required

    /// The time for one exchange, with its second attempt.
    package var budget: Duration {
        switch self {
        case .preferred: .seconds(3)
        case .required: .seconds(6)
        }
    }
}
