from mooncake.cli_client import main

main()
