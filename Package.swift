// swift-tools-version: 6.2

import PackageDescription

/// The settings of every target. The warning about a misspelt upcoming feature is in the group `StrictLanguageFeatures`, which
/// must be turned into an error by name.
let house: [SwiftSetting] = [
    .swiftLanguageMode(.v6),
    .enableUpcomingFeature("ExistentialAny"),
    .enableUpcomingFeature("InternalImportsByDefault"),
    .enableUpcomingFeature("MemberImportVisibility"),
    .enableUpcomingFeature("NonisolatedNonsendingByDefault"),
    .treatAllWarnings(as: .error),
    .treatWarning("StrictLanguageFeatures", as: .error),
]

/// The settings of the two targets that call C: each unsafe expression is marked `unsafe`.
let facingC: [SwiftSetting] = house + [.strictMemorySafety()]

/// The settings of targets whose code runs seldom, or mostly waits. It is a large part of the binary, whose size is limited.
let seldomRun: [SwiftSetting] = house + [.unsafeFlags(["-Osize"], .when(configuration: .release))]

let nio: [Target.Dependency] = [
    .product(name: "NIOCore", package: "swift-nio"),
    .product(name: "NIOHTTP1", package: "swift-nio"),
    .product(name: "NIOPosix", package: "swift-nio"),
]

let package = Package(
    name: "siwad",
    platforms: [.macOS(.v26)],
    products: [.executable(name: "siwad", targets: ["siwad"])],
    dependencies: [
        .package(url: "https://github.com/apple/swift-argument-parser", exact: "1.8.2"),
        .package(url: "https://github.com/apple/swift-log", exact: "1.16.2"),
        .package(url: "https://github.com/apple/swift-nio", exact: "2.101.2"),
        .package(url: "https://github.com/apple/swift-nio-ssl", exact: "2.37.6"),
        .package(url: "https://github.com/hummingbird-project/hummingbird", exact: "2.28.1", traits: []),
        .package(url: "https://github.com/swift-server/async-http-client", exact: "1.37.0"),
        .package(url: "https://github.com/swift-server/swift-service-lifecycle", exact: "2.13.0"),
        .package(url: "https://github.com/swiftlang/swift-subprocess", exact: "1.0.2", traits: []),
    ],
    targets: [
        .systemLibrary(
            name: "CLibPQ",
            path: "Sources/CLibPQ",
            pkgConfig: "libpq",
            providers: [.apt(["libpq-dev"]), .brew(["libpq"])]
        ),
        .systemLibrary(
            name: "COpenSSL",
            path: "Sources/COpenSSL",
            pkgConfig: "libcrypto",
            providers: [.apt(["libssl-dev"]), .brew(["openssl@3"])]
        ),
        .systemLibrary(name: "CRename", path: "Sources/CRename"),
        // The environment, because SwiftPM keeps an evaluated manifest, with the commit of that time in Context.gitInformation.
        .target(
            name: "CBuild",
            cSettings: [.define("SIWAD_COMMIT", to: "\"\(Context.environment["SIWAD_COMMIT"] ?? "unknown")\"")]
        ),
        .target(name: "Basics", swiftSettings: house),
        .target(name: "Postgres", dependencies: ["CLibPQ"], swiftSettings: facingC),
        .target(name: "JOSE", dependencies: ["Basics", "COpenSSL"], swiftSettings: facingC),
        .target(name: "AppleTokens", dependencies: ["Basics", "JOSE"], swiftSettings: house),
        .target(name: "SignIn", dependencies: ["AppleTokens", "Basics", "JOSE"], swiftSettings: seldomRun),
        .target(name: "AppleSimulator", dependencies: ["Basics", "JOSE"], swiftSettings: seldomRun),
        .target(
            name: "WebClient",
            dependencies: [
                "Basics",
                "JOSE",
                .product(name: "AsyncHTTPClient", package: "async-http-client"),
                .product(name: "NIOCore", package: "swift-nio"),
                .product(name: "NIOHTTP1", package: "swift-nio"),
                .product(name: "NIOPosix", package: "swift-nio"),
                .product(name: "NIOSSL", package: "swift-nio-ssl"),
            ],
            swiftSettings: seldomRun
        ),
        .target(
            name: "Telemetry",
            dependencies: ["Basics", .product(name: "Logging", package: "swift-log")],
            swiftSettings: seldomRun
        ),
        .target(
            name: "Schema",
            dependencies: ["Postgres"],
            path: "Schema",
            resources: [.embedInCode("Migrations"), .embedInCode("Events"), .embedInCode("catalog.txt")],
            swiftSettings: house
        ),
        .target(
            name: "AccountStore",
            dependencies: ["AppleTokens", "Basics", "Postgres", "Schema"],
            resources: [.embedInCode("Statements")],
            swiftSettings: seldomRun
        ),
        .target(name: "Spool", dependencies: ["Basics", "CRename", "JOSE"], swiftSettings: seldomRun),
        .target(
            name: "Ingest",
            dependencies: ["AccountStore", "AppleTokens", "Basics", "JOSE", "Postgres", "Spool", "Telemetry"],
            swiftSettings: seldomRun
        ),
        .target(
            name: "Effects",
            dependencies: [
                "AccountStore", "AppleTokens", "Basics", "JOSE", "Postgres", "Telemetry", "Terminal", "Webhooks",
            ],
            swiftSettings: seldomRun
        ),
        .target(
            name: "SignInFlow",
            dependencies: [
                "AccountStore", "AppleTokens", "Basics", "Ingest", "JOSE", "Postgres", "SignIn", "Telemetry",
                "WebClient",
            ],
            swiftSettings: seldomRun
        ),
        .target(
            name: "NotificationServer",
            dependencies: [
                "AppleTokens",
                "Basics",
                "Ingest",
                "JOSE",
                "Listening",
                "Telemetry",
                .product(name: "HummingbirdCore", package: "hummingbird"),
                .product(name: "Logging", package: "swift-log"),
                .product(name: "NIOSSL", package: "swift-nio-ssl"),
                .product(name: "NIOTLS", package: "swift-nio"),
            ] + nio,
            swiftSettings: house
        ),
        .target(
            name: "Listening",
            dependencies: ["Telemetry", .product(name: "NIOSSL", package: "swift-nio-ssl")] + nio,
            swiftSettings: seldomRun
        ),
        .target(
            name: "WebServer",
            dependencies: [
                "AppleTokens",
                "Basics",
                "Listening",
                "SignIn",
                "Telemetry",
                .product(name: "HummingbirdCore", package: "hummingbird"),
                .product(name: "Logging", package: "swift-log"),
                .product(name: "NIOCore", package: "swift-nio"),
                .product(name: "NIOSSL", package: "swift-nio-ssl"),
            ],
            resources: [.embedInCode("Application/openapi.json")],
            swiftSettings: seldomRun
        ),
        .target(
            name: "LocalPostgres",
            dependencies: [.product(name: "Subprocess", package: "swift-subprocess")],
            swiftSettings: seldomRun
        ),
        .target(
            name: "Settings",
            dependencies: ["AppleTokens", "Basics", "JOSE", "SignIn", "Telemetry"],
            swiftSettings: seldomRun
        ),
        .target(name: "Terminal", dependencies: ["Basics"], swiftSettings: seldomRun),
        .target(name: "Webhooks", dependencies: ["Basics", "JOSE"], swiftSettings: seldomRun),
        .executableTarget(
            name: "ExampleApplication",
            dependencies: ["Basics", "JOSE", "Postgres"],
            path: "deploy/examples/swift",
            swiftSettings: house
        ),
        .executableTarget(
            name: "siwad",
            dependencies: [
                "AccountStore",
                "WebClient",
                "AppleTokens",
                "AppleSimulator",
                "Basics",
                "CBuild",
                "Effects",
                "Ingest",
                "JOSE",
                "Listening",
                "LocalPostgres",
                "NotificationServer",
                "Postgres",
                "Schema",
                "Settings",
                "SignIn",
                "SignInFlow",
                "Spool",
                "Telemetry",
                "Terminal",
                "WebServer",
                "Webhooks",
                .product(name: "ArgumentParser", package: "swift-argument-parser"),
                .product(name: "ServiceLifecycle", package: "swift-service-lifecycle"),
                .product(name: "UnixSignals", package: "swift-service-lifecycle"),
            ] + nio,
            swiftSettings: seldomRun
        ),
    ]
)

/// The tests of a target, with their other dependencies.
func tests(of target: String, with dependencies: [Target.Dependency] = []) -> Target {
    .testTarget(
        name: "\(target)Tests",
        dependencies: [.target(name: target)] + dependencies,
        swiftSettings: house
    )
}

package.targets += [
    .target(
        name: "TestSupport",
        dependencies: [
            "LocalPostgres",
            "Postgres",
            .product(name: "NIOCore", package: "swift-nio"),
            .product(name: "NIOPosix", package: "swift-nio"),
            .product(name: "NIOSSL", package: "swift-nio-ssl"),
            .product(name: "Subprocess", package: "swift-subprocess"),
        ],
        path: "Tests/TestSupport",
        swiftSettings: house
    ),
    .target(
        name: "StoreTestSupport",
        dependencies: ["AccountStore", "AppleTokens", "Basics", "JOSE", "Postgres", "Schema", "TestSupport"],
        path: "Tests/StoreTestSupport",
        swiftSettings: house
    ),
    tests(
        of: "AccountStore",
        with: ["AppleTokens", "Basics", "LocalPostgres", "Postgres", "Schema", "StoreTestSupport", "TestSupport"]
    ),
    tests(
        of: "WebClient",
        with: ["Basics", "JOSE", "TestSupport", .product(name: "NIOSSL", package: "swift-nio-ssl")] + nio
    ),
    tests(of: "AppleTokens", with: ["AppleSimulator", "Basics", "JOSE"]),
    tests(of: "AppleSimulator", with: ["JOSE"]),
    tests(of: "Basics"),
    tests(
        of: "Effects",
        with: [
            "AccountStore", "AppleTokens", "Basics", "Postgres", "StoreTestSupport", "Telemetry", "Terminal",
            "TestSupport",
        ]
    ),
    tests(
        of: "Ingest",
        with: [
            "AccountStore",
            "AppleTokens",
            "AppleSimulator",
            "Basics",
            "JOSE",
            "Postgres",
            "Spool",
            "StoreTestSupport",
            "Telemetry",
            "TestSupport",
        ]
    ),
    tests(of: "JOSE"),
    .testTarget(
        name: "JOSEDifferentialTests",
        dependencies: [
            "JOSE",
            "Postgres",
            "StoreTestSupport",
            "TestSupport",
            .product(name: "Subprocess", package: "swift-subprocess"),
        ],
        swiftSettings: house
    ),
    tests(
        of: "LocalPostgres",
        with: ["Postgres", "TestSupport", .product(name: "Subprocess", package: "swift-subprocess")]
    ),
    tests(
        of: "NotificationServer",
        with: [
            "AppleTokens",
            "Basics",
            "Ingest",
            "Listening",
            "Telemetry",
            "TestSupport",
            .product(name: "Logging", package: "swift-log"),
            .product(name: "NIOEmbedded", package: "swift-nio"),
            .product(name: "NIOSSL", package: "swift-nio-ssl"),
            .product(name: "ServiceLifecycle", package: "swift-service-lifecycle"),
        ] + nio
    ),
    tests(of: "Postgres", with: ["TestSupport"]),
    tests(of: "Settings", with: ["AppleTokens", "Basics", "JOSE", "SignIn", "Telemetry"]),
    tests(of: "SignIn", with: ["AppleTokens", "Basics", "JOSE"]),
    tests(
        of: "SignInFlow",
        with: [
            "AccountStore",
            "AppleSimulator",
            "AppleTokens",
            "Basics",
            "Ingest",
            "JOSE",
            "Postgres",
            "SignIn",
            "StoreTestSupport",
            "Telemetry",
            "TestSupport",
            "WebClient",
        ]
    ),
    tests(of: "Spool", with: ["TestSupport"]),
    tests(of: "Telemetry", with: ["Basics", .product(name: "Logging", package: "swift-log")]),
    tests(of: "Terminal"),
    tests(
        of: "WebServer",
        with: [
            "AppleTokens",
            "Basics",
            "JOSE",
            "Listening",
            "SignIn",
            "Telemetry",
            "TestSupport",
            .product(name: "AsyncHTTPClient", package: "async-http-client"),
            .product(name: "NIOSSL", package: "swift-nio-ssl"),
            .product(name: "ServiceLifecycle", package: "swift-service-lifecycle"),
        ] + nio
    ),
    tests(of: "Webhooks", with: ["Basics", "JOSE"]),
    tests(
        of: "siwad",
        with: [
            "AccountStore",
            "WebClient",
            "AppleTokens",
            "Basics",
            "Ingest",
            "JOSE",
            "Listening",
            "NotificationServer",
            "Postgres",
            "Settings",
            "StoreTestSupport",
            "Terminal",
            "TestSupport",
        ]
    ),
    .testTarget(
        name: "EndToEndTests",
        dependencies: [
            "AccountStore",
            "AppleTokens",
            "AppleSimulator",
            "Basics",
            "Ingest",
            "JOSE",
            "Listening",
            "LocalPostgres",
            "NotificationServer",
            "Postgres",
            "StoreTestSupport",
            "Telemetry",
            "TestSupport",
            "WebClient",
            "Webhooks",
            // The tests run this program, so it must be built first.
            "siwad",
            .product(name: "AsyncHTTPClient", package: "async-http-client"),
            .product(name: "NIOSSL", package: "swift-nio-ssl"),
            .product(name: "ServiceLifecycle", package: "swift-service-lifecycle"),
            .product(name: "Subprocess", package: "swift-subprocess"),
        ] + nio,
        exclude: ["receiver.py", "requirements.txt", "sign_in.py", "validate.py"].map { "Receivers/\($0)" },
        swiftSettings: house
    ),
    // Swift's module Glibc lacks epoll.
    .systemLibrary(name: "CEpoll", path: "Tests/Benchmarks/CEpoll"),
    .executableTarget(
        name: "Benchmarks",
        dependencies: [
            "AccountStore",
            "AppleTokens",
            "AppleSimulator",
            "Basics",
            "CEpoll",
            "JOSE",
            "LocalPostgres",
            "Postgres",
            "Terminal",
            .product(name: "ArgumentParser", package: "swift-argument-parser"),
            .product(name: "AsyncHTTPClient", package: "async-http-client"),
            .product(name: "NIOCore", package: "swift-nio"),
            .product(name: "NIOHTTP1", package: "swift-nio"),
            .product(name: "NIOPosix", package: "swift-nio"),
            .product(name: "Subprocess", package: "swift-subprocess"),
        ],
        path: "Tests/Benchmarks",
        exclude: ["CEpoll", "peers"],
        swiftSettings: house
    ),
]
