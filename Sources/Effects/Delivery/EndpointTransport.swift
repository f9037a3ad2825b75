/// One request to an endpoint.
package struct EndpointRequest: Sendable {
    package let body: [UInt8]
    package let headers: [(name: String, value: String)]
    /// For the whole request.
    package let timeout: Duration
}

/// Sends requests to one endpoint, over connections of its own.
package struct EndpointTransport: Sendable {
    let post: @Sendable (EndpointRequest) async -> EndpointAnswer
    let close: @Sendable () async -> Void
    /// Where ``post`` runs without changing threads; nil for the cooperative pool. What runs there must not block.
    let executor: (any TaskExecutor)?

    package init(
        executor: (any TaskExecutor)? = nil,
        post: @escaping @Sendable (EndpointRequest) async -> EndpointAnswer,
        close: @escaping @Sendable () async -> Void
    ) {
        self.executor = executor
        self.post = post
        self.close = close
    }
}
