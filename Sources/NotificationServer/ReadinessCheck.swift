/// One of the conditions under which notifications can be accepted durably.
package struct ReadinessCheck: Sendable, Equatable {
    /// A short name, such as `database`.
    package let name: String
    /// Whether it holds.
    package let isReady: Bool
    /// Why it doesn't, or what is worth knowing. One line.
    package let detail: String?

    /// A check with its result.
    package init(name: String, isReady: Bool, detail: String? = nil) {
        self.name = name
        self.isReady = isReady
        self.detail = detail
    }

    /// `[+]database ok`, as Kubernetes writes it.
    var line: String {
        "\(isReady ? "[+]" : "[-]")\(name) \(isReady ? "ok" : "failed")\(detail.map { ": \($0)" } ?? "")"
    }
}
