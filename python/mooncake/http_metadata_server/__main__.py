from mooncake.http_metadata_server import main

main()
