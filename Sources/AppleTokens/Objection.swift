/// Why a token is not a verified notification, and at which step that came out.
enum Objection: Error, Sendable {
    case refused(Rejection, at: Check.Name)
    case needsKey(String)
    /// Kept for an operator; the sentence names claims, never their values.
    case deadLetter(DeadLetterReason, String, at: Check.Name)

    /// The step that wasn't passed.
    var check: Check.Name {
        switch self {
        case .refused(_, let check), .deadLetter(_, _, let check): check
        case .needsKey: .key
        }
    }
}
