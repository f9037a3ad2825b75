import JOSE

/// What one claim turned out to be. The type of each is noted while reading and judged later, since the order of the
/// judgements isn't the order of the claims.
enum Claim<Value: Sendable>: Sendable {
    case absent
    /// There, but of another type than it must be.
    case malformed
    case value(Value)

    /// The value, if there is one of the right type.
    var value: Value? {
        switch self {
        case .absent, .malformed: nil
        case .value(let value): value
        }
    }
}

extension JSONReader {
    /// Reads a claim that must be a string.
    mutating func stringClaim() throws(JOSEError) -> Claim<String> {
        guard let text = try stringOrSkip() else { return .malformed }
        return .value(text)
    }

    /// Reads a claim that must be a whole number.
    mutating func integerClaim() throws(JOSEError) -> Claim<Int64> {
        guard let number = try integerOrSkip() else { return .malformed }
        return .value(number)
    }
}
