/// The types of JSON values.
package enum JSONKind: String, Sendable, Hashable, CaseIterable {
    /// `{ }`
    case object
    /// `[ ]`
    case array
    /// `" "`
    case string
    /// A number of any spelling.
    case number
    /// `true` or `false`
    case boolean
    /// `null`
    case null
}
