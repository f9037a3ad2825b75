import Basics

/// The fields of a request in `application/x-www-form-urlencoded` (WHATWG URL §5.1).
package struct FormFields: Sendable, Equatable {
    /// Apple's requests have at most seven.
    static let maximumFields = 16

    private let values: [String: String]

    /// - Returns: nil for a malformed escape, text that is not UTF-8, a repeated name, or too many fields.
    package init?(parsing body: [UInt8]) {
        guard let text = String(validating: body, as: UTF8.self) else { return nil }
        let fields = text.split(separator: "&")
        guard fields.count <= Self.maximumFields else { return nil }
        var values: [String: String] = [:]
        for field in fields {
            let name = field.prefix { $0 != "=" }
            guard let key = Self.decoded(name), let value = Self.decoded(field[name.endIndex...].dropFirst()),
                values.updateValue(value, forKey: key) == nil
            else { return nil }
        }
        self.values = values
    }

    package init(_ values: [String: String]) {
        self.values = values
    }

    /// The names in alphabetical order.
    package var names: [String] { values.keys.sorted() }

    /// The value of a field; nil if it is missing or empty.
    package subscript(_ name: String) -> String? {
        values[name].flatMap { $0.isEmpty ? nil : $0 }
    }

    private static func decoded(_ text: Substring) -> String? {
        text.replacing("+", with: " ").percentDecoded
    }
}
