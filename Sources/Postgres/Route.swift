/// Where a connection leads, and how far it makes sure of the server there.
package struct Route: Sendable, Equatable {
    /// The server's IP address; nil: a unix socket.
    package let address: String?
    /// `sslmode` in force, also that of a service file or the environment. With `verify-full` alone the server has to show a
    /// certificate for its name (libpq, "SSL Support").
    package let sslMode: String

    /// A route to an address, or through a unix socket.
    package init(address: String?, sslMode: String) {
        self.address = address
        self.sslMode = sslMode
    }

    /// Whether it stays within this machine.
    package var isLocal: Bool {
        guard let address else { return true }
        return address == "::1" || address.hasPrefix("127.") || address.hasPrefix("::ffff:127.")
    }
}
