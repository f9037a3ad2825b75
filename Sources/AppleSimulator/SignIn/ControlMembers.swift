import JOSE

/// The members of a control request. Members that are not read are misspelt, so they are refused.
struct ControlMembers {
    private var rest: [String: JSONValue]

    init(parsing body: [UInt8]) throws(ControlError) {
        guard !body.isEmpty else {
            rest = [:]
            return
        }
        guard let members = (try? JSONValue(parsing: body))?.members else {
            throw ControlError("the body is no JSON object")
        }
        rest = Dictionary(members.map { ($0.name, $0.value) }) { $1 }
    }

    mutating func string(_ name: String) throws(ControlError) -> String? {
        guard let value = take(name) else { return nil }
        guard let text = value.string else { throw ControlError("\(name) is no string") }
        return text
    }

    mutating func integer(_ name: String) throws(ControlError) -> Int64? {
        guard let value = take(name) else { return nil }
        guard let number = value.integer else { throw ControlError("\(name) is no whole number") }
        return number
    }

    mutating func boolean(_ name: String) throws(ControlError) -> Bool? {
        guard let value = take(name) else { return nil }
        guard case .boolean(let flag) = value else { throw ControlError("\(name) is neither true nor false") }
        return flag
    }

    mutating func choice<Choice: RawRepresentable<String> & CaseIterable>(
        _ name: String,
        _ type: Choice.Type
    ) throws(ControlError) -> Choice? {
        guard let text = try string(name) else { return nil }
        guard let choice = Choice(rawValue: text) else {
            throw ControlError("\(name) is one of \(Choice.allCases.map(\.rawValue).joined(separator: ", "))")
        }
        return choice
    }

    /// Refuses members that were not read.
    func end() throws(ControlError) {
        guard let name = rest.keys.min() else { return }
        throw ControlError("\(name) is no member of this request")
    }

    /// The value of a member unless it is null.
    private mutating func take(_ name: String) -> JSONValue? {
        rest.removeValue(forKey: name).flatMap { $0 == .null ? nil : $0 }
    }
}
