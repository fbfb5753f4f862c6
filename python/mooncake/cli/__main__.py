from mooncake.cli import main

main()
